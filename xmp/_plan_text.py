"""Facts and plans as JSON and as a table: version 1 of the forms that people store and attach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ._errors import PlanError
from ._runtimes._base import matches
from ._runtimes._variables import REPORTED
from ._types import HostFacts, JobPlan, ReplicaPlan

__all__ = ["explain", "facts_from_json", "facts_to_json", "reported", "to_json"]

VERSION = 1
LISTS = ("cpus", "loaded", "initialised")
PLAIN = (
    "hostname",
    "address",
    "platform",
    "python",
    "env",
    "tpu",
    "gpus",
    "metadata",
    "cpu_quota",
    "memory_bytes",
    "frameworks",
    "env_at_start",
)


def facts_to_json(facts: HostFacts) -> dict[str, Any]:
    """The facts as plain JSON values; mappings are copied."""
    plain = {name: getattr(facts, name) for name in PLAIN}
    copied = {k: dict(v) if isinstance(v, Mapping) else v for k, v in plain.items()}
    lists = {name: list(getattr(facts, name)) for name in LISTS}
    return {"version": VERSION, **copied, **lists, "numa": [list(node) for node in facts.numa]}


def reported(facts: HostFacts) -> HostFacts:
    """The facts without what nobody needs for a plan: people attach them to public reports.

    Proxies stay as names only, since their addresses may hold a password.
    """
    env = {name: value for name, value in facts.env.items() if matches(name, REPORTED)}
    proxies = {n for n, v in facts.env.items() if v and n.lower().endswith("_proxy")} - {*env}
    return replace(facts, env={**env, **dict.fromkeys(sorted(proxies), "(set)")})


def facts_from_json(data: Mapping[str, Any]) -> HostFacts:
    """The facts again; unknown keys are ignored, null is unknown. PlanError: another version."""
    if not isinstance(data, Mapping) or data.get("version") != VERSION:
        given = data.get("version") if isinstance(data, Mapping) else type(data).__name__
        raise PlanError(
            f"facts of version {given!r} cannot be read. Allowed: version {VERSION}, as written "
            "by `python -m xmp facts --json`."
        )
    values: dict[str, Any] = {k: data[k] for k in PLAIN if data.get(k) is not None}
    values.update({k: tuple(data[k]) for k in LISTS if data.get(k) is not None})
    values["numa"] = tuple(tuple(node) for node in data.get("numa") or ())
    return HostFacts(**values)


def to_json(plan: JobPlan) -> dict[str, Any]:
    """The plan as plain JSON values; keys as in the design, section 8."""
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
            }
            for host in plan.hosts
        ],
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


def explain(plan: JobPlan) -> str:
    """The plan as lines that a person reads: first what all replicas share, then the differences.

    Never ends with a newline.
    """
    replicas = [replica for host in plan.hosts for replica in host.replicas]
    shared = set(replicas[0].set).intersection(*(replica.set for replica in replicas))
    sources = dict(plan.sources)
    lines = [f"runtime   {plan.runtime}: {plan.why}"]
    if plan.others:
        lines.append(f"          possible too: {', '.join(plan.others)}")
    lines += [
        f"hosts     {_hosts(plan)}: {sources.get('hosts', '')}",
        f"replicas  {len(plan.hosts[0].replicas)} on each: {sources.get('replicas', '')}",
        f"threads   {replicas[0].threads} in each: {sources.get('threads', '')}",
        *_ports(plan),
    ]
    lines += ["", "set in every replica:"]
    lines += [f"  {name}={value}" for name, value in sorted(shared)]
    taken = sorted({name for replica in replicas for name in replica.unset})
    if taken:
        lines.append(f"taken away: {', '.join(taken)}")
    lines += ["", *_table(plan, shared)]
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def _ports(plan: JobPlan) -> list[str]:
    """One line for each kind of port: the documented numbers stand for those that are leased."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for need in plan.needs:
        key = (need.name.partition(".")[0], need.address)
        kinds.setdefault(key, []).append(need.port or need.documented)
    return [
        f"ports     {_range(ports)} at {address} for {kind}"
        for (kind, address), ports in kinds.items()
    ]


def _range(ports: list[int]) -> str:
    return str(ports[0]) if len(ports) == 1 else f"{min(ports)}-{max(ports)}"


def _hosts(plan: JobPlan) -> str:
    shown = ", ".join(f"{host.index} ({host.address})" for host in plan.hosts[:4])
    more = f" and {len(plan.hosts) - 4} more" if len(plan.hosts) > 4 else ""
    return f"{shown}{more}"


def _table(plan: JobPlan, shared: set[tuple[str, str]]) -> list[str]:
    rows = [("rank", "host", "device", "threads", "cores", "its own")]
    for host in plan.hosts:
        for replica in host.replicas:
            own = " ".join(f"{n}={v}" for n, v in replica.set if (n, v) not in shared)
            cores = ",".join(str(cpu) for cpu in replica.cpus) or "any"
            rows.append(
                (
                    str(replica.rank),
                    str(host.index),
                    replica.device,
                    str(replica.threads or "-"),
                    cores,
                    own,
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return ["  ".join([*map(str.ljust, row, widths), row[5]]).rstrip() for row in rows]
