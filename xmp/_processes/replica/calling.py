"""Calls the user's function in a replica: in its main thread, or in a thread of each replica."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from xmp import _inside
from xmp._os import signals
from xmp._processes.messages.thread_replicas import ThreadResults, plans_of
from xmp._processes.messages.timeline import Timeline
from xmp._words.framework import Framework
from xmp._words.replica_info import ReplicaInfo
from xmp._words.types import ReplicaPlan

from .channel import SupervisorChannel
from .reports import exit_code
from .role import LoadedCall, Role

__all__ = ["called", "run_threads"]


def called(
    role: Role, framework: Framework | None, call: LoadedCall, timeline: Timeline, number: int = 0
) -> Any:
    """Call the function; from its end on, no signal handler interrupts the report of it.

    ``number`` is that of the gang's call.
    """
    fn, args, kwargs = call
    try:
        if role.plan.thread_replicas:
            return run_threads(role, framework, lambda rank: fn(rank, *args, **kwargs), number)
        result = fn(role.plan.rank, *args, **kwargs)
        if role.common.order.settings.stays:
            _inside.synchronize()  # it may have returned with collectives pending
        if role.common.order.call.cell:
            from .notebook import flush_figures

            flush_figures()
        return result if role.common.order.settings.wants_results else None
    finally:
        signals.keep_deferred()
        timeline.left = time.monotonic_ns()


def run_threads(
    role: Role, framework: Framework | None, call: Callable[[int], Any], number: int = 0
) -> ThreadResults:
    """Call the function for every replica of this process, each in its own thread.

    The engine starts, watches and ends processes; only here does one process run several replicas.
    Raise what the first failing one raises, and set ``role.failing_rank``. The other threads end
    with the process, since one that waits in a collective would never return.
    """
    beside: Callable[[ReplicaInfo], Framework] | None = getattr(framework, "beside", None)
    if beside is None:
        raise RuntimeError(
            f"the runtime {role.info.runtime!r} has planned several replicas for one process, but "
            "its framework has no beside(info) to make threads of them"
        )
    plans = plans_of(role.plan)
    channels = role.common.channel.split([each.local_rank for each in plans])
    outcomes: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def be_one(each: ReplicaPlan, channel: SupervisorChannel) -> None:
        try:
            info = replace(
                role.info,
                rank=each.rank,
                local_rank=each.local_rank,
                device=each.device,
                settings=dict(each.settings),
            )
            record = role.common.records.own(each.local_rank)
            _inside.install(info, beside(info), channel, key=role.common.order.key, record=record)
            _inside.begin_call(number)
            value = call(each.rank)
            channel.report_left()
            outcomes.put((each.rank, value, None))
        except BaseException as error:
            outcomes.put((each.rank, None, error))

    for each in zip(plans, channels, strict=True):
        name = f"xmp-replica-{each[0].rank}"
        threading.Thread(target=be_one, args=each, name=name, daemon=True).start()
    values: dict[int, Any] = {}
    for _ in plans:
        role.failing_rank, values[role.failing_rank], error = outcomes.get()
        # A successful exit ends without a result, as in a replica that is a process.
        if error is not None and not (isinstance(error, SystemExit) and exit_code(error) == 0):
            raise error
    return ThreadResults(values[each.rank] for each in plans)
