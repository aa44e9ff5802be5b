"""A plan as text for people: what `xmp plan` and ``print(xmp.plan())`` show."""

from __future__ import annotations

from xmp._words.types import JobPlan

__all__ = ["explain"]


def explain(plan: JobPlan) -> str:
    """Return the plan as lines of text: first what all replicas share, then the differences.

    The text does not end with a newline.
    """
    from .secrets import shown  # a launch need not compile its patterns

    replicas = [replica for host in plan.hosts for replica in host.replicas]
    shared = set(replicas[0].set).intersection(*(replica.set for replica in replicas))
    sources = dict(plan.sources)
    lines = [f"runtime   {plan.runtime}: {plan.why}"]
    if plan.others:
        lines.append(f"          also possible: {', '.join(plan.others)}")
    lines += [
        _hosts(plan, sources.get("hosts", "")),
        f"replicas  {len(plan.hosts[0].replicas)} per host: {sources.get('replicas', '')}",
        f"threads   {replicas[0].threads} per replica: {sources.get('threads', '')}",
        *_ports(plan),
        *_meeting(plan),
        *_files(plan),
    ]
    lines += ["", "set in every replica:"]
    lines += [f"  {name}={shown(name, value)}" for name, value in sorted(shared)]
    removed = sorted({name for replica in replicas for name in replica.unset})
    if removed:
        lines.append(f"removed: {', '.join(removed)}")
    lines += ["", *_table(plan, shared)]
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def _ports(plan: JobPlan) -> list[str]:
    """Return one line for each kind of port, with documented numbers for ports not leased yet."""
    kinds: dict[tuple[str, str, bool], list[int]] = {}
    for need in plan.needs:
        key = (need.name.partition(".")[0], need.address, need.port == 0)
        kinds.setdefault(key, []).append(need.port or need.documented)
    return [
        f"ports     {_range(ports)}{' (or others that are free)' if any_ else ''} at {address} "
        f"for {kind}"
        for (kind, address, any_), ports in kinds.items()
    ]


def _meeting(plan: JobPlan) -> list[str]:
    """Return the line on where the launchers of several hosts meet before any replica starts."""
    met = plan.meeting
    if met is None:
        return []
    return [f"meeting   the launchers of {met.hosts} hosts, at {met.address} port {met.port}"]


def _files(plan: JobPlan) -> list[str]:
    """Return one line for each value too long for a variable; hosts may have different texts."""
    sizes = {name: len(text) for host in plan.hosts for name, text in host.files}
    return [f"file      {name}: {n:,} characters, for the launch" for name, n in sizes.items()]


def _range(ports: list[int]) -> str:
    return str(ports[0]) if len(ports) == 1 else f"{min(ports)}-{max(ports)}"


def _hosts(plan: JobPlan, source: str) -> str:
    """Return the line on the planned hosts, or on this one of several, and what determined them."""
    met = plan.meeting
    if met is not None and len(plan.hosts) == 1:
        by = source.removeprefix(f"this is host {met.index} of {met.hosts}")
        return f"host      {met.index} of {met.hosts} ({plan.hosts[0].address}){by}"
    shown = ", ".join(f"{host.index} ({host.address})" for host in plan.hosts[:4])
    more = f" and {len(plan.hosts) - 4} more" if len(plan.hosts) > 4 else ""
    return f"hosts     {shown}{more}: {source}"


def _table(plan: JobPlan, shared: set[tuple[str, str]]) -> list[str]:
    from .secrets import shown

    rows = [("rank", "host", "device", "threads", "cores", "own variables")]
    for host in plan.hosts:
        for replica in host.replicas:
            own = " ".join(f"{n}={shown(n, v)}" for n, v in replica.set if (n, v) not in shared)
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


JobPlan.as_text = explain
