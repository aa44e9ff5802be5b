"""``xmp doctor``: whether a launch would work here, and if not, what to do. One line per finding.

It starts nothing and opens no device. It tries the ports of this host by leasing them, and from
another host the port of host 0 by connecting.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from xmp import _registry
from xmp._os import proc
from xmp._plan import planner
from xmp._plan.runtimes._base import version_of
from xmp._plan.secrets import shown
from xmp._words.errors import PlanError, PortError, StartError
from xmp._words.types import HostFacts, JobPlan, PortNeed, Request

from . import findings, packages, resources
from .findings import Finding, LookAtPort
from .holders import device_holders, lock_holders
from .launches import described, leftovers

__all__ = ["Finding", "examine", "in_order"]

Lease = Callable[[Sequence[PortNeed]], AbstractContextManager[Any]]
TUNED = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
TUNED_PREFIXES = ("NCCL_", "TORCH_NCCL_", "RCCL_")


def examine(
    facts: HostFacts,
    request: Request,
    lease: Lease,
    root: str | Path = "/",
    reach: LookAtPort | None = None,
) -> list[Finding]:
    """Return all findings of this host for a launch of ``request``, problems first.

    ``lease`` leases ports, to find out whether they are free; ``reach`` connects to the port of
    host 0, from another host of the job.
    """
    base = Path(root)
    found = [*_needed(), *_packages(facts), *_foreign(), *_tuned(facts), *_huge_pages(facts, base)]
    found += findings.shared(findings.shared_memory(base))
    on_chips = bool(facts.tpu)
    if why := resources.too_many(request.nprocs or 0, base):
        found.append(Finding("problem", f"{request.nprocs} replicas do not fit: {why}"))
    try:
        plan = planner.plan(request, facts)
    except PlanError as error:
        found.append(Finding("problem", str(error), code=error.code))
    else:
        found += [finding for look in LOOKS for finding in look(plan, facts)]
        found += findings.memory(base, facts.memory_bytes, len(plan.hosts[0].replicas))
        found += _fixed_ports(plan, lease)
        found += findings.found(plan, facts, reach)
        on_chips = plan.hosts[0].replicas[0].device.startswith("tpu")
    found += [Finding("problem", why)] if (why := proc.refusal()) else []
    if not proc.foreign():  # the pids there are no advice
        found += _held("problem" if on_chips else "warning", base)
    return in_order(found)


def in_order(found: Iterable[Finding]) -> list[Finding]:
    """Return the findings sorted: problems, then warnings, then notes."""
    order = {"problem": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _needed() -> Iterator[Finding]:
    if importlib.util.find_spec("cloudpickle") is None:
        text = "xmp needs the package cloudpickle, which is not installed"
        yield Finding("problem", text, "pip install cloudpickle", StartError.code)


def _packages(facts: HostFacts) -> Iterator[Finding]:
    torch, xla = version_of(facts, "torch"), version_of(facts, "torch_xla")
    if torch and xla and torch[:2] != xla[:2]:
        text = f"torch_xla {facts.frameworks['torch_xla']} with torch {facts.frameworks['torch']}"
        yield Finding("problem", text, f"install torch=={xla[0]}.{xla[1]}.*")
    if version_of(facts, "torch_tpu") and not (2, 11) <= torch[:2] <= (2, 15):
        text = f"torch_tpu {facts.frameworks['torch_tpu']} with torch {facts.frameworks['torch']}"
        yield Finding("problem", text, "install torch 2.11 to 2.15")
    jax, jaxlib = facts.frameworks.get("jax"), facts.frameworks.get("jaxlib")
    if jax and version_of(facts, "jaxlib")[:2] != version_of(facts, "jax")[:2]:
        yield Finding("problem", f"jax {jax} with jaxlib {jaxlib}", f"install jaxlib=={jax}")
    libtpu = version_of(facts, "libtpu")
    if version_of(facts, "torch_tpu") and libtpu and libtpu < (0, 0, 50):
        yield Finding("problem", f"libtpu {facts.frameworks['libtpu']}", "torch_tpu needs 0.0.50")
    if facts.tpu and facts.frameworks and not libtpu and not xla:
        yield Finding("warning", "this host has TPU chips and no libtpu", "pip install libtpu")
    known = [f"{name} {version}" for name, version in facts.frameworks.items() if version]
    yield Finding("note", f"installed: {', '.join(known) or 'no framework that xmp knows'}")
    for kind in ("runtime", "engine", "launcher"):
        for name, found in sorted(_registry.foreign(f"{kind}s").items()):
            made = found.dist
            by = f" by {made.name} {made.version}" if made is not None else ""
            yield Finding("note", f"{kind} {name!r} is added{by} ({found.value})")


def _foreign() -> Iterator[Finding]:
    for owner in packages.foreign_owners():
        name = owner.partition(" ")[0]
        text = f"{owner} is another project with the import name xmp (this one is {packages.OURS})"
        # Uninstalling the other one alone also removes what both have written.
        advice = f"pip uninstall {name} {packages.OURS}; pip install . in the source of xmp"
        yield Finding("warning", text, advice)


def _held(level: str, root: Path) -> Iterator[Finding]:
    for holder in device_holders(root):
        advice = f"end it (kill {holder.pid}) or wait: only one process can use a chip"
        yield Finding(level, f"{holder.what} is held by {holder}", advice)
    for holder in lock_holders(root):
        advice = f"end it (kill {holder.pid}): removing the lock file frees no chip"
        yield Finding(level, f"libtpu's lock is held by {holder}", advice)
    found = leftovers(root)
    for process in found.proven:
        text = f"left by an earlier launch: {described(process, root)}"
        yield Finding("warning", text, "end it with `python -m xmp clean`")
    for each in found.doubtful:
        text = f"may be left by an earlier launch: {described(each.process, root)} ({each})"
        yield Finding("warning", text, f"kill {each.process.pid} if it is yours")


def _tuned(facts: HostFacts) -> Iterator[Finding]:
    for name, value in sorted(facts.env.items()):
        if value and (name in TUNED or name.startswith(TUNED_PREFIXES)):
            text = f"{name}={shown(name, value)} is not the default"
            yield Finding("note", text, "unset it if in doubt")


def _huge_pages(facts: HostFacts, root: Path) -> Iterator[Finding]:
    """Advise huge pages, without which libtpu starts and ends slowly on v5e and later.

    libtpu maps large buffers.
    """
    setting = proc.text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    if facts.tpu.get("generation") in ("v5e", "v6e", "7x") and "[always]" not in setting:
        advice = "echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        yield Finding("note", "transparent huge pages are not always on", advice)


def _plan(plan: JobPlan, facts: HostFacts) -> Iterator[Finding]:
    others = f" (also possible: {', '.join(plan.others)})" if plan.others else ""
    replicas = len(plan.hosts[0].replicas)
    text = f"a launch would have {replicas} replicas with {plan.runtime}: {plan.why}{others}"
    yield Finding("note", text)
    for note in plan.notes:
        yield Finding("warning" if note.startswith("dropped") else "note", note)


def _fixed_ports(plan: JobPlan, lease: Lease) -> Iterator[Finding]:
    """Try the ports whose numbers several hosts must agree on; the others may be any free port."""
    fixed = [need for need in plan.needs if need.port]
    free = []
    for need in fixed:
        try:
            with lease([need]):
                free.append(need)
        except PortError as error:
            yield Finding("problem", str(error), code=error.code)
    if fixed and free == fixed:
        ports = ", ".join(str(need.port) for need in fixed)
        text = f"this host has the address {fixed[0].address}, and these ports are free: {ports}"
        yield Finding("note", text)


def _threads(plan: JobPlan, facts: HostFacts) -> Iterator[Finding]:
    replicas = plan.hosts[0].replicas
    total = sum(replica.threads or 1 for replica in replicas)
    if total > 2 * len(facts.cpus):
        threads = replicas[0].threads or 1
        kinds = "1 thread" if threads == 1 else f"{threads} threads"
        text = f"{len(replicas)} replicas with {kinds} on {len(facts.cpus)} cores"
        if threads == 1:
            yield Finding("note", f"{text}: they share the cores")
        else:
            given = "OMP_NUM_THREADS" in facts.env
            advice = (
                "unset OMP_NUM_THREADS, or pass threads=" if given else "pass a smaller threads="
            )
            yield Finding("warning", text, advice)


LOOKS: tuple[Callable[[JobPlan, HostFacts], Iterator[Finding]], ...] = (_plan, _threads)
