"""The replicas' shares of a host's cores: threads for each, and the cores to pin it to."""

from __future__ import annotations

from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError, brief
from xmp._words.types import HostFacts

from ._base import many

__all__ = ["bound_cores", "thread_count", "thread_source", "usable_cores"]


def usable_cores(facts: HostFacts) -> int:
    """Return the whole cores that this process may use, at least 1.

    That is the smaller of affinity and cgroup quota.

    A quota of 1.5 CPUs counts as one core: the kernel would throttle two threads.
    """
    cores = len(facts.cpus)
    if facts.cpu_quota is not None:
        cores = min(cores, int(facts.cpu_quota))
    return max(cores, 1)


def thread_count(requested: int | None, inherited: str | None, facts: HostFacts, local: int) -> int:
    """Return a replica's threads: as requested, else ``OMP_NUM_THREADS``, else an equal share."""
    if requested is not None:
        return requested
    return threads_said(inherited) or max(usable_cores(facts) // local, 1)


def threads_said(variable: str | None) -> int:
    """Return the threads that ``OMP_NUM_THREADS`` asks for ("4", "4,2"); 0 if it asks for none."""
    first = (variable or "").split(",")[0].strip()
    return int(first) if is_number(first) else 0


def thread_source(
    requested: int | None, inherited: str | None, facts: HostFacts, local: int
) -> str:
    """Return what determined ``thread_count``, in words."""
    if requested is not None:
        return "threads given"
    if threads_said(inherited):
        return f"OMP_NUM_THREADS={inherited}"
    quota = "" if facts.cpu_quota is None else f", quota {facts.cpu_quota:g}"
    return f"{usable_cores(facts)} usable cores{quota} for {many(local, 'replica')}"


def bound_cores(bind: bool | str | None, facts: HostFacts, local: int, n: int) -> tuple[int, ...]:
    """Return the cores to pin local replica ``local`` of ``n`` to; none where it is not pinned."""
    if bind in (None, False):
        return ()
    if bind in (True, "cores"):
        return _slice(facts.cpus, local, n)
    if bind == "numa":
        return _node(facts, local, n)
    raise PlanError(
        f'bind={brief(bind)} is not known. Allowed: True or "cores", "numa", None.', code="XMP-P01"
    )


def _slice(cpus: tuple[int, ...], local: int, n: int) -> tuple[int, ...]:
    if n > len(cpus):
        return (cpus[local % len(cpus)],)
    return cpus[local * len(cpus) // n : (local + 1) * len(cpus) // n]


def _node(facts: HostFacts, local: int, n: int) -> tuple[int, ...]:
    allowed = set(facts.cpus)
    nodes = [tuple(cpu for cpu in node if cpu in allowed) for node in facts.numa]
    nodes = [node for node in nodes if node] or [facts.cpus]
    return nodes[local * len(nodes) // n] if n >= len(nodes) else nodes[local]
