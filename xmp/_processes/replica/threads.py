"""Replicas that are threads of one process, where their hardware cannot be divided.

The engine starts, watches and ends processes; only here does one process run several replicas.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp import _inside
from xmp._processes.messages.thread_replicas import ThreadResults, plans_of
from xmp._words.framework import Framework
from xmp._words.replica_info import ReplicaInfo
from xmp._words.types import ReplicaPlan

from .channel import SupervisorChannel
from .exit import exit_code

if TYPE_CHECKING:
    from .role import Role

__all__ = ["run_threads"]


def run_threads(
    role: Role, framework: Framework | None, call: Callable[[int], Any]
) -> ThreadResults:
    """Call the function for every replica of this process, each in its own thread.

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

    def run(each: ReplicaPlan, channel: SupervisorChannel) -> None:
        try:
            info = replace(
                role.info,
                rank=each.rank,
                local_rank=each.local_rank,
                device=each.device,
                settings=dict(each.settings),
            )
            _inside.install(info, beside(info), channel, key=role.common.order.key)
            value = call(each.rank)
            channel.report_left()
            outcomes.put((each.rank, value, None))
        except BaseException as error:
            outcomes.put((each.rank, None, error))

    for each in zip(plans, channels, strict=True):
        name = f"xmp-replica-{each[0].rank}"
        threading.Thread(target=run, args=each, name=name, daemon=True).start()
    values: dict[int, Any] = {}
    for _ in plans:
        role.failing_rank, values[role.failing_rank], error = outcomes.get()
        # A successful exit ends without a result, as in a replica that is a process.
        if error is not None and not (isinstance(error, SystemExit) and exit_code(error) == 0):
            raise error
    return ThreadResults(values[each.rank] for each in plans)
