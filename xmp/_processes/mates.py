"""Replicas that share a process, as threads of it, where their hardware cannot be divided.

The engine starts, watches and ends processes; here their replicas are put together and taken
apart again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp import _inside
from xmp._types import Framework, HostPlan, ReplicaInfo, ReplicaPlan

from .channel import Channel
from .outcome import exit_code

if TYPE_CHECKING:
    from .role import Role

__all__ = ["Together", "by_process", "call_all", "count", "spread"]


class Together(tuple[Any, ...]):
    """What the replicas of one process returned, in rank order."""


def by_process(host: HostPlan) -> HostPlan:
    """The plan with one entry for each process: its first replica, which holds the others."""
    first: dict[int, ReplicaPlan] = {}
    for plan in host.replicas:
        lead = first.get(plan.process)
        first[plan.process] = plan if lead is None else _joined(lead, plan)
    return replace(host, replicas=tuple(first.values()))


def _joined(lead: ReplicaPlan, plan: ReplicaPlan) -> ReplicaPlan:
    threads = None if lead.threads is None else lead.threads + (plan.threads or 0)
    cpus = tuple(sorted({*lead.cpus, *plan.cpus}))
    return replace(lead, mates=(*lead.mates, plan), threads=threads, cpus=cpus)


def count(plans: Sequence[ReplicaPlan]) -> int:
    """How many replicas these processes hold."""
    return sum(1 + len(plan.mates) for plan in plans)


def spread(plan: ReplicaPlan, value: Any) -> dict[int, Any]:
    """The value of every replica of a process, by rank."""
    values = value if isinstance(value, Together) else (value, *(None for _ in plan.mates))
    return dict(zip((plan.rank, *(mate.rank for mate in plan.mates)), values, strict=True))


def call_all(role: Role, framework: Framework | None, call: Callable[[int], Any]) -> Together:
    """Call the function for every replica of this process, each in a thread of its own.

    Raises what the first of them raises, whose rank ``role.speaker`` tells; the other threads are
    left to the end of the process, since one that waits in a collective would never come back.
    """
    beside: Callable[[ReplicaInfo], Framework] | None = getattr(framework, "beside", None)
    if beside is None:
        raise RuntimeError(
            f"the runtime {role.info.runtime!r} has planned several replicas for one process, but "
            "its framework has no beside(info) to make threads of them"
        )
    plans = (role.plan, *role.plan.mates)
    channels = role.channel.split([each.local_rank for each in plans])
    said: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def run(each: ReplicaPlan, channel: Channel) -> None:
        try:
            who = _info(role.info, each)
            _inside.install(who, beside(who), channel)
            value = call(each.rank)
            channel.tell_last_step()
            said.put((each.rank, value, None))
        except BaseException as error:
            said.put((each.rank, None, error))

    for each in zip(plans, channels, strict=True):
        name = f"xmp-replica-{each[0].rank}"
        threading.Thread(target=run, args=each, name=name, daemon=True).start()
    values: dict[int, Any] = {}
    for _ in plans:
        role.speaker, values[role.speaker], error = said.get()
        # An exit with success is, as in a process of its own, an end without a result.
        if error is not None and not (isinstance(error, SystemExit) and exit_code(error) == 0):
            raise error
    return Together(values[each.rank] for each in plans)


def _info(first: ReplicaInfo, plan: ReplicaPlan) -> ReplicaInfo:
    return replace(
        first,
        rank=plan.rank,
        local_rank=plan.local_rank,
        device=plan.device,
        settings=dict(plan.settings),
    )
