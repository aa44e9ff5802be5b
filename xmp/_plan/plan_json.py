"""Facts and plans as plain JSON values: what `xmp facts --json` and `xmp plan --json` print.

Version 1 of both. In facts ``null`` means unknown, and a reader ignores keys that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from xmp._words.errors import PlanError
from xmp._words.host_words import HostMeeting
from xmp._words.types import HostFacts, JobPlan, ReplicaPlan

from .clusters.launchers import foreign
from .facts_schema import checked
from .runtimes._base import matches
from .runtimes._known_variables import REPORTED

__all__ = ["facts_from_json", "facts_to_json", "reported", "to_json"]

VERSION = 1
LISTS = ("cpus", "loaded", "initialised")
PLAIN = (
    *("hostname", "address", "interface", "platform", "python", "env", "tpu", "gpus", "metadata"),
    *("host_files", "cpu_quota", "memory_bytes", "frameworks", "env_at_start"),
)


def facts_to_json(facts: HostFacts) -> dict[str, Any]:
    """Return the facts as plain JSON values; mappings are copied."""
    plain = {name: getattr(facts, name) for name in PLAIN}
    copied = {k: dict(v) if isinstance(v, Mapping) else v for k, v in plain.items()}
    lists = {name: list(getattr(facts, name)) for name in LISTS}
    return {"version": VERSION, **copied, **lists, "numa": [list(node) for node in facts.numa]}


def reported(facts: HostFacts) -> HostFacts:
    """Return the facts with only the variables that a plan reads, for public reports.

    Of proxies only the names are kept: their addresses may hold a password. Secrets are hidden.
    """
    names = (*REPORTED, *(name for row in foreign(facts.env) for name in row.names))
    env = {name: value for name, value in facts.env.items() if matches(name, names)}
    proxies = {n for n, v in facts.env.items() if v and n.lower().endswith("_proxy")} - {*env}
    return replace(
        facts,
        env={**_shown(env), **dict.fromkeys(sorted(proxies), "(set)")},
        env_at_start=_shown(facts.env_at_start),
        metadata=_shown(facts.metadata),
    )


def _shown(variables: Mapping[str, str]) -> dict[str, str]:
    from .secrets import shown  # a launch need not compile its patterns

    return {name: shown(name, value) for name, value in variables.items()}


def facts_from_json(data: Mapping[str, Any]) -> HostFacts:
    """Return the facts that ``facts_to_json`` wrote. Raise PlanError for anything else."""
    given = data.get("version") if isinstance(data, Mapping) else type(data).__name__
    if given is True or given != VERSION:
        raise PlanError(
            f"facts of version {given!r} cannot be read. Allowed: version {VERSION}, as "
            "`python -m xmp facts --json` writes it.",
            code="XMP-P01",
        )
    values = checked(data)
    values.update({k: tuple(values[k]) for k in LISTS if k in values})
    values["numa"] = tuple(tuple(node) for node in values.get("numa", ()))
    return HostFacts(**values)


def to_json(plan: JobPlan) -> dict[str, Any]:
    """Return the plan as plain JSON values.

    A replica's ``set`` has every variable that xmp sets in it, ``unset`` every inherited one that
    xmp removes. Ports that are not leased yet are the runtime's documented ones. A host has
    ``files`` where a value is too long for a variable: the text, under the name of the variable
    that will hold its path. ``meeting`` is null where this host is the only one. Else it says
    which of ``hosts`` hosts this is (``index``, from 0) and where their launchers meet: at
    ``address`` and ``port`` of host 0.
    """
    return {
        "version": VERSION,
        "runtime": plan.runtime,
        "why": plan.why,
        "world_size": plan.world_size,
        "others": list(plan.others),
        "sources": dict(plan.sources),
        "hosts": [
            {
                "index": host.index,
                "address": host.address,
                "replicas": [_replica_json(replica) for replica in host.replicas],
                **({"files": dict(host.files)} if host.files else {}),
            }
            for host in plan.hosts
        ],
        "meeting": None if plan.meeting is None else _meeting_json(plan.meeting),
        "notes": list(plan.notes),
    }


def _replica_json(replica: ReplicaPlan) -> dict[str, Any]:
    return {
        "rank": replica.rank,
        "local_rank": replica.local_rank,
        "process": replica.process,
        "device": replica.device,
        "threads": replica.threads,
        "cpus": list(replica.cpus),
        "set": dict(replica.set),
        "unset": list(replica.unset),
    }


_INNER = ("names", "open")


def _meeting_json(meeting: HostMeeting) -> dict[str, Any]:
    """Return the meeting without the names of hosts: the plan's ``hosts`` has what is known."""
    return {name: value for name, value in asdict(meeting).items() if name not in _INNER}
