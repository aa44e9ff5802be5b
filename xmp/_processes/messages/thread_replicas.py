"""Replicas that are threads of one process: their joint plan, and the results taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xmp._words.types import HostPlan, ReplicaPlan

__all__ = ["ThreadResults", "by_process", "count", "plans_of", "spread"]


class ThreadResults(tuple[Any, ...]):
    """The results of the replicas of one process, in rank order."""


def by_process(host: HostPlan) -> HostPlan:
    """Return the plan with one entry for each process: its first replica, with the others in it."""
    first: dict[int, ReplicaPlan] = {}
    for plan in host.replicas:
        lead = first.get(plan.process)
        first[plan.process] = plan if lead is None else _joined(lead, plan)
    return replace(host, replicas=tuple(first.values()))


def _joined(lead: ReplicaPlan, plan: ReplicaPlan) -> ReplicaPlan:
    threads = None if lead.threads is None else lead.threads + (plan.threads or 0)
    cpus = tuple(sorted({*lead.cpus, *plan.cpus}))
    return replace(lead, thread_replicas=(*lead.thread_replicas, plan), threads=threads, cpus=cpus)


def count(plans: Sequence[ReplicaPlan]) -> int:
    return sum(len(plans_of(plan)) for plan in plans)


def plans_of(plan: ReplicaPlan) -> tuple[ReplicaPlan, ...]:
    return (plan, *plan.thread_replicas)


def spread(plan: ReplicaPlan, value: Any) -> dict[int, Any]:
    """Return the value of every replica of a process, by rank."""
    plans = plans_of(plan)
    values = value if isinstance(value, ThreadResults) else (value, *(None for _ in plans[1:]))
    return dict(zip((each.rank for each in plans), values, strict=True))
