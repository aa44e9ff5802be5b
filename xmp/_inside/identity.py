"""Who this replica is: ranks, sizes, its device, its framework and its channel to the supervisor.

The engine calls ``install`` in every replica. Before that, and in processes that other launchers
started, the same functions describe a world of one or that launcher's world, so that one script
runs with and without xmp. A context variable comes before the value of the process, because two
replicas may be threads of one process.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from xmp._os import signals
from xmp._os.imports import loaded_framework

from .launch_key import of_environment

if TYPE_CHECKING:
    import socket

    from xmp._words.framework import Framework
    from xmp._words.replica_info import ReplicaInfo

__all__ = [
    "Channel",
    "ReplicaState",
    "begin_script",
    "channel",
    "child_apart",
    "current",
    "device",
    "for_children",
    "framework_of",
    "host_index",
    "in_a_replica",
    "install",
    "installed",
    "is_in_function",
    "is_replica",
    "is_thread",
    "launch_key",
    "local_rank",
    "local_world_size",
    "replica",
    "restart_count",
    "settle",
    "synchronize",
    "take_over",
    "uninstall",
    "whose_child",
]

T = TypeVar("T")

FOR_CHILDREN = "xmp"
"""Under this name a process object of multiprocessing has what its replica's children must know."""
_TORCH = "xmp._inside.frameworks.torch_dist"
_JAX = "xmp._inside.frameworks.jax"


class Channel(Protocol):
    """What a replica asks of its supervisor; the engine provides it."""

    @property
    def door(self) -> socket.socket:
        """What its children need to ask."""

    def share(
        self, key: str, make: Callable[[], T], owner: int | None = None, kept: bool = False
    ) -> T:
        """One local replica calls ``make`` (``owner``, or the first to ask); all get the value.

        It is dropped when each of them has it, unless it is ``kept``.
        """

    def preempted(self, counts: bool) -> bool:
        """Whether all replicas have agreed that they end at this call, which may not count."""

    def beat(self) -> None:
        """Report progress from a child that shares no memory with the replica."""

    def turn(self, key: str) -> AbstractContextManager[None]:
        """Mutual exclusion between the local replicas; freed when its holder dies."""


class ReplicaState:
    """One replica: its place in the launch, its framework, its channel to the supervisor."""

    def __init__(
        self,
        info: ReplicaInfo,
        framework: Framework | None,
        channel: Channel | None,
        outside: bool = False,
        key: bytes | None = None,
    ) -> None:
        self.info = info
        self.framework = framework
        self.channel = channel
        self.outside = outside  # no launch of xmp's made this process
        self.key = key  # None: no launch of xmp's has given one
        self.is_alone = False  # the caller itself, as nprocs=1 asks
        self.is_apart = False  # a child of the replica that has none of its memory
        self.is_script = False  # it runs a script, as a process of torchrun does
        self.once_calls: Iterator[int] = itertools.count()
        self.pid, self.thread = _pid, _thread()

    def is_own(self) -> bool:
        """Whether this is the thread of this replica itself: none of its others, and no child."""
        return self.thread == _thread() and self.pid == _pid


_in_this_context: ContextVar[ReplicaState | None] = ContextVar("xmp_replica", default=None)
_in_this_process: ReplicaState | None = None
_outside: ReplicaState | None = None
_lock = threading.Lock()
_thread = threading.get_ident
_pid = os.getpid()
"""Of this process: where a sandbox handles system calls, each costs a microsecond."""


def _note_pid() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_note_pid)


def install(
    info: ReplicaInfo,
    framework: Framework | None,
    channel: Channel | None,
    is_alone: bool = False,
    key: bytes | None = None,
) -> None:
    """Make this context that replica, and the process too unless it is one already."""
    global _in_this_process
    state = ReplicaState(info, framework, channel, key=key)
    state.is_alone = is_alone
    _in_this_context.set(state)
    if _in_this_process is None:
        _in_this_process = state


def settle(info: ReplicaInfo, framework: Framework | None) -> None:
    """Add what ``install`` could not know: the rank of this fork, and its framework."""
    global _in_this_process
    state = _in_this_context.get()
    assert state is not None
    state.info, state.framework = info, framework
    _in_this_process = state


def take_over() -> None:
    """In a replica that has inherited what ``install`` made: it is this process, no child of it."""
    state = _in_this_context.get()
    assert state is not None
    state.pid, state.thread = _pid, _thread()


def begin_script() -> None:
    """From here on this replica runs a script, which may launch its functions as this rank."""
    current().is_script = True


def is_in_function() -> bool:
    """Whether this is a replica that runs a function: what launches itself elsewhere runs here."""
    return is_replica() and not current().is_script


def uninstall() -> None:
    """Undo ``install``: from here on this process is outside a replica."""
    global _in_this_process, _outside
    if _in_this_process is _in_this_context.get():
        _in_this_process = None
    _in_this_context.set(None)
    _outside = None


def replica() -> ReplicaInfo:
    """Everything that is known about this replica, as one frozen value.

    Its fields are those of ``ReplicaInfo``: ``rank``, ``world_size``, ``device`` …, and
    what follows from them: ``device_type``, ``device_id``, ``device_ordinal``, ``endpoint``,
    ``endpoints``, ``sampler_kwargs`` (for torch's ``DistributedSampler``).
    """
    state = current()
    ordinal: Callable[[], int] | None = getattr(state.framework, "ordinal", None)
    if ordinal is None:
        return state.info
    with signals.deferred():
        from dataclasses import replace  # loaded with ReplicaInfo; `import xmp` takes 12 ms less

    return replace(state.info, settings={**state.info.settings, "ordinal": str(ordinal())})


def synchronize() -> None:
    """Wait until this replica's device has done what was given to it."""
    wait: Callable[[], None] | None = getattr(current().framework, "synchronize", None)
    if wait is not None:
        wait()


def local_rank() -> int:
    """This replica's index among those of its host: 0 … ``local_world_size() - 1``."""
    return current().info.local_rank


def local_world_size() -> int:
    """The number of replicas on this host; 1 outside a launch."""
    return current().info.local_world_size


def host_index() -> int:
    """The index of this host among the launch's hosts, from 0."""
    return current().info.host_index


def restart_count() -> int:
    """How often this launch has been restarted so far."""
    return current().info.restart_count


def is_thread() -> bool:
    """Whether this replica is one of several threads of a process, each of them a replica."""
    return int(current().info.settings.get("threads_per_process", "1")) > 1


def device() -> Any:
    """This replica's device, as its framework names it.

    ``torch.device("cuda", 3)``, ``torch.device("cpu")``, a ``jax.Device``; without a framework in
    the replica, and in its children with an interpreter of their own (multiprocessing's "spawn"
    and "forkserver"), the name that the plan gives it (a string).
    """
    state = current()
    framework = framework_of(state)
    return state.info.device if framework is None else framework.device()


def launch_key() -> bytes:
    """The key that this replica shares with the others of its launch; empty: they share none."""
    state = current()
    return of_environment(state.info) if state.key is None else state.key


def channel() -> Channel | None:
    """This replica's channel to the supervisor; None outside a replica."""
    return current().channel


def in_a_replica() -> bool:
    """Whether a launch has made this process; reads no environment variable."""
    state = installed()
    return state is not None and state.channel is not None


def is_replica() -> bool:
    """Whether this thread is a replica, also one that ``nprocs=1`` runs in the caller."""
    return installed() is not None


def whose_child() -> str:
    """Which child of which replica this process is, for messages; empty if it is none."""
    state = current()
    if state.pid == _pid:
        return ""
    return f"process {_pid}, a child of rank {state.info.rank},"


def child_apart() -> Channel | None:
    """The channel of a child that shares no memory with its replica."""
    state = installed()
    return state.channel if state is not None and state.is_apart else None


def installed() -> ReplicaState | None:
    """The replica that this thread is, or whose child; None outside a launch."""
    return _in_this_context.get() or _in_this_process or _of_the_parent()


def _of_the_parent() -> ReplicaState | None:
    """The replica that has made this process by multiprocessing, with an interpreter of its own."""
    global _in_this_process
    process = sys.modules.get("multiprocessing.process")
    config = getattr(process.current_process(), "_config", {}) if process is not None else {}
    facts = config.get(FOR_CHILDREN)
    if facts is None:
        return None
    with signals.deferred():
        from xmp._words.replica_info import ReplicaInfo

        engine = importlib.import_module(facts["engine"])
    info = ReplicaInfo(**facts["info"])
    state = ReplicaState(info, None, engine.in_child(facts["door"], info.local_rank))
    state.pid, state.is_apart = facts["pid"], True
    _in_this_process = state
    return state


def for_children() -> dict[str, Any]:
    """What a child of this replica must know, for the configuration of its process object.

    Multiprocessing copies that to every child, and to theirs. The environment says who a replica is
    as well, but programs get it, too.
    """
    state = current()
    if state.channel is None:
        return {}
    info = {**vars(state.info), "settings": dict(state.info.settings), "descriptors": {}}
    door, engine = state.channel.door, type(state.channel).__module__
    return {FOR_CHILDREN: {"info": info, "pid": state.pid, "door": door, "engine": engine}}


def current() -> ReplicaState:
    """The replica that this thread is; outside a launch, what the environment says."""
    global _outside
    state = installed()
    if state is not None:
        return state
    with signals.deferred():
        from xmp._plan.clusters import (
            per_device,  # a program that asks for nothing need not load it
        )

    info = per_device.identity(os.environ)  # at each call: a script may set RANK itself
    with _lock:
        if _outside is None or _outside.info != info:
            _outside = ReplicaState(info, None, None, outside=True)
    return _outside


def framework_of(state: ReplicaState) -> Framework | None:
    """The replica's framework; outside a launch, the one that this process has or can load."""
    if state.framework is None and state.outside:
        with signals.deferred():
            name = _loaded_or_installed()
            if name:
                state.framework = importlib.import_module(name).attach(state.info)
    return state.framework


def _loaded_or_installed() -> str:
    jax = loaded_framework("jax")
    if jax is not None and (jax.distributed.is_initialized() or "torch" not in sys.modules):
        return _JAX
    if "torch" in sys.modules or importlib.util.find_spec("torch") is not None:
        return _TORCH
    return ""
