"""What runs in a replica, and the functions that the user's code calls there.

``identity`` says which replica this is, ``collectives`` and ``groups`` talk to the others,
``once`` has what one does for all, ``sharing`` MpModelWrapper and MpSerialExecutor, ``breakpoint``
the debugger of one rank. ``script_runs`` is what a replica of `xmp run` does. ``frameworks/`` has a
module for each framework. Tests: ``tests/replica``, ``tests/frameworks``,
``tests/frameworks/test_sharing.py``.
"""

from __future__ import annotations

from .collectives import (
    OPS,
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    heartbeat,
    init_process_group,
    preempted,
)
from .groups import local_group, rank, world_size
from .identity import (
    Channel,
    begin_call,
    begin_script,
    channel,
    device,
    end_call,
    for_children,
    gangs_call,
    host_index,
    in_a_replica,
    install,
    installed,
    is_in_function,
    is_replica,
    is_thread,
    launch_key,
    local_rank,
    local_world_size,
    replica,
    restart_count,
    settle,
    synchronize,
    take_over,
    uninstall,
    whose_child,
)
from .once import once_per_host, rank_zero_only

__all__ = [
    "OPS", "Channel", "all_gather", "all_reduce", "barrier", "begin_call", "begin_script",
    "broadcast", "channel", "device", "end_call", "for_children", "gangs_call", "heartbeat",
    "host_index", "in_a_replica", "init_process_group", "install", "installed", "is_in_function",
    "is_replica", "is_thread", "launch_key", "local_group", "local_rank", "local_world_size",
    "once_per_host", "preempted", "rank", "rank_zero_only", "replica", "restart_count", "settle",
    "synchronize", "take_over", "uninstall", "whose_child", "world_size",
]  # fmt: skip
