"""The variables that replicas get under every runtime, and the inherited ones that are removed.

Also those of ``env=``, and values that are too long for a variable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from xmp._plan.clusters.launchers import outer
from xmp._plan.clusters.per_device import INSIDE, NESTED
from xmp._words.errors import PlanError
from xmp._words.types import HostPlan, JobPlan, Pairs, ReplicaPlan, Request

from ._base import Job, Place, Runtime, matches
from ._import_effects import undone, without_chips
from ._known_variables import IDENTITY, LEFT_OVER, MEETING_PLACES, READERS, SECRETS
from ._meeting import gloo_interface, store_need

__all__ = [
    "LONGEST", "check_read_at_import", "common", "dropped", "env_by_rank", "env_of_all", "in_files",
    "is_too_long", "replaced", "still_too_long", "unset",
]  # fmt: skip


def common(runtime: Runtime, job: Job, place: Place) -> dict[str, str]:
    """Return the variables that a host's replicas share: the size of the job, its rendezvous."""
    given, _ = undone(place.facts)
    given |= {
        **without_chips(place.facts),
        "WORLD_SIZE": str(job.world),
        "LOCAL_WORLD_SIZE": str(job.local),
        "NODE_RANK": str(place.index),
        "NNODES": str(job.hosts),
        "GROUP_RANK": str(place.index),
        "GROUP_WORLD_SIZE": str(job.hosts),
    }
    if runtime.has_store(job):
        given["MASTER_ADDR"] = job.coordinator
        given["MASTER_PORT"] = str(job.port(store_need(job)))
        given |= gloo_interface(job, place)
    given.update(_no_proxy(job, place.facts.env))
    return {k: v for k, v in given.items() if k not in runtime.removes}


def _no_proxy(job: Job, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that exempt the job's own addresses from the host's proxy, if any."""
    proxies = {n for n, v in env.items() if v and n.lower().endswith("_proxy")}
    if not proxies - {"no_proxy", "NO_PROXY"}:
        return {}
    inherited = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if inherited.strip() == "*":
        return {}
    entries = [part.strip() for part in inherited.split(",") if part.strip()]
    own = ("localhost", "127.0.0.1", "::1", job.coordinator)
    value = ",".join(dict.fromkeys((*entries, *own)))
    return {"no_proxy": value, "NO_PROXY": value}


def unset(runtime: Runtime, job: Job, place: Place, given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the inherited variables that would give a replica a wrong identity.

    Those that the plan itself sets, the keys of ``given``, are not among them.
    """
    names = job.once(f"unset.{place.index}", lambda: _inherited(runtime, job, place))
    return tuple(name for name in names if name not in given)


def _inherited(runtime: Runtime, job: Job, place: Place) -> list[str]:
    patterns = (*_patterns(runtime, place), *runtime.removes, *_of_outer_launch(place))
    found = [name for name in place.facts.env if matches(name, patterns)]
    return sorted({*found, *undone(place.facts)[1], *_stale(job, place)})


def _patterns(runtime: Runtime, place: Place) -> tuple[str, ...]:
    launchers = (name for _, names in outer(place.facts.env) for name in names)
    left = () if runtime.name == "xrt" else LEFT_OVER
    return (*IDENTITY, *SECRETS, *runtime.owned, *launchers, *left)


def _of_outer_launch(place: Place) -> tuple[str, ...]:
    """Return the name of the user's variable for replicas of the outer launch, if there is one."""
    return (NESTED,) if INSIDE in place.facts.env else ()


def _stale(job: Job, place: Place) -> list[str]:
    """Return the inherited multislice variables where the job has one slice, else none."""
    if job.memo.get("slices") != 1:
        return []
    return [name for name in place.facts.env if name.startswith("MEGASCALE_")]


def dropped(runtime: Runtime, job: Job, replica: ReplicaPlan) -> tuple[str, ...]:
    """Return one note for each outer launcher whose variables are removed.

    A runtime itself adds notes on those of its own variables that it cannot use.
    """
    left = list(replica.unset)
    notes = []
    launchers = outer(job.places[0].facts.env)
    launch = ("an outer launch", IDENTITY)
    for launcher, patterns in (*launchers, ("an older XRT configuration", LEFT_OVER), launch):
        names = [n for n in left if matches(n, patterns) and not matches(n, runtime.owned)]
        left = [name for name in left if name not in names]
        if names and not (launcher == launch[0] and job.hosts > 1):
            notes.append(f"dropped {', '.join(names)}: inherited from {launcher}")
    return tuple(notes)


def replaced(runtime: Runtime, job: Job, replica: ReplicaPlan) -> tuple[str, ...]:
    """Return a note on the addresses and ports set before the launch that the plan replaces."""
    env, given = job.places[0].facts.env, dict(replica.set)
    if INSIDE in env:
        return ()  # in a replica they are xmp's own
    # A port that xmp leases differs from the user's, even where the plan shows the same number.
    names = [n for n in MEETING_PLACES if n in env and given.get(n, env[n]) != env[n]]
    if job.leasable and "MASTER_PORT" in env and "MASTER_PORT" in given:
        names.append("MASTER_PORT")
    if not names:
        return ()
    from xmp._plan.secrets import shown  # only here are its patterns needed

    what = ", ".join(f"{name}={shown(name, env[name])}" for name in dict.fromkeys(names))
    note = f"replaced {what} (inherited): replicas meet at a port that xmp holds for them"
    own = " or pass init_method=" if runtime.family.startswith("torch") else ""
    return (f"{note}. For one of your own, set it in the function{own}",)


# --- env= ----------------------------------------------------------------------------------------


# A forked replica has its parent's imports: a variable that an import reads must have its value
# before that, in the process that imports, and so the same value for all replicas.


def env_of_all(request: Request) -> Pairs:
    """Return the variables that ``env=`` sets to the same value in all replicas."""
    entries = request.env or ((),)
    return tuple(pair for pair in entries[0] if all(pair in entry for entry in entries))


def env_by_rank(request: Request) -> tuple[str, ...]:
    """Return the names that ``env=`` does not set to the same value in all replicas, sorted."""
    common = dict(env_of_all(request))
    names = {name for entry in request.env or () for name, _ in entry}
    return tuple(sorted(names - common.keys()))


def check_read_at_import(
    plan: JobPlan, method: str, environment: Mapping[str, str], loaded: Collection[str]
) -> None:
    """Raise PlanError for a variable of ``env=`` that has no effect with this start method.

    ``environment`` and ``loaded`` are the launcher's variables and packages.
    """
    if method == "spawn":
        return
    for name in plan.env_by_rank:
        if _is_read_at_import(name, plan) and (method != "fork" or _has_read(name, loaded)):
            raise PlanError(
                f"env= gives {name} a different value on some ranks, but {name} is read at the "
                "start of Python or by an import, and forked replicas share their imports. Give "
                'one value for all, or pass start_method="spawn".',
                code="XMP-P05",
            )
    quiet = dict(plan.fork_rules.quiet)
    for name, value in plan.env:
        if not _is_read_at_import(name, plan) or environment.get(name) == value:
            continue
        if method == "fork" and _has_read(name, loaded):
            raise PlanError(
                f'env={{{name!r}: {value!r}}} has no effect under start_method="fork": {name} is '
                "read at the start of Python or by an import, and the replicas are forks of this "
                'process, which has read it. Pass start_method="spawn" or "forkserver".',
                code="XMP-P05",
            )
        if quiet.get(name, value) != value:
            raise PlanError(
                f"env={{{name!r}: {value!r}}}: xmp imports with {name}={quiet[name]} before it "
                'forks the replicas, and only imports read it. Pass start_method="spawn".',
                code="XMP-P05",
            )


def _is_read_at_import(name: str, plan: JobPlan) -> bool:
    later = matches(name, plan.first_use_variables)
    return matches(name, plan.import_variables) and not later


def _has_read(name: str, loaded: Collection[str]) -> bool:
    """Return whether a process that loaded these packages has read the variable.

    A variable that belongs to none of the packages in ``READERS`` counts as read: the interpreter
    reads some.
    """
    readers = [package for patterns, package in READERS if matches(name, patterns)]
    return not readers or not set(readers).isdisjoint(loaded)


# --- values that are too long for a program's environment ----------------------------------------


LONGEST = 128 * 1024 - 1
"""The longest "NAME=value" that ``execve`` takes, in bytes: Linux's MAX_ARG_STRLEN less a NUL."""


def in_files(host: HostPlan, from_files: Mapping[str, str]) -> HostPlan:
    """Return the host's plan with values that are too long moved from variables to ``files``.

    ``from_files`` has the variables that can be read from a file, each with that of the path. Only
    a value that all replicas of the host share is moved.
    """
    shared = set(host.replicas[0].set).intersection(*(each.set for each in host.replicas))
    long = {name: text for name, text in shared if name in from_files and is_too_long(name, text)}
    if not long:
        return host
    files = tuple(sorted((from_files[name], text) for name, text in long.items()))
    return replace(host, replicas=tuple(_without(r, long) for r in host.replicas), files=files)


def _without(replica: ReplicaPlan, names: Mapping[str, str]) -> ReplicaPlan:
    """Return the replica without these variables, and without inherited ones of these names."""
    kept = tuple((name, text) for name, text in replica.set if name not in names)
    return replace(replica, set=kept, unset=tuple(sorted({*replica.unset, *names})))


def still_too_long(hosts: Sequence[HostPlan]) -> tuple[str, ...]:
    """Return one note for each variable that keeps a replica from starting programs."""
    pairs = {pair for host in hosts for replica in host.replicas for pair in replica.set}
    names = sorted({name for name, text in pairs if is_too_long(name, text)})
    return tuple(
        f"{name} is longer than 128 KiB: replicas cannot start programs (Linux's execve refuses "
        'it), and start_method="spawn" cannot start replicas'
        for name in names
    )


def is_too_long(name: str, text: str) -> bool:
    """Return whether no program can be started with this variable."""
    return len(f"{name}={text}".encode(errors="surrogateescape")) > LONGEST
