"""Who this replica is: ranks, sizes, its device, its framework and its channel to the supervisor.

The engine calls ``install`` in every replica. Before that, and in processes that other launchers
started, the same functions describe a world of one or that launcher's world, so that one script
runs with and without xmp. A context variable has precedence over the value of the process, because
two replicas may be threads of one process.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from xmp._os import signals
from xmp._os.imports import loaded_framework

from .call_state import CallState
from .launch_key import of_environment

if TYPE_CHECKING:
    import socket

    from xmp._words.framework import Framework
    from xmp._words.record import Record
    from xmp._words.replica_info import ReplicaInfo

__all__ = [
    "Channel", "OwnRecord", "ReplicaState", "begin_call", "begin_script", "channel", "child_apart",
    "current", "device", "end_call", "for_children", "framework_of", "gangs_call", "host_index",
    "in_a_replica", "install", "installed", "is_in_function", "is_replica", "is_thread",
    "launch_key", "local_rank", "local_world_size", "replica", "restart_count", "settle",
    "synchronize", "take_over", "uninstall", "whose_child",
]  # fmt: skip

T = TypeVar("T")

FOR_CHILDREN = "xmp"
"""The key under which a process object of multiprocessing holds what its children must know."""
_TORCH = "xmp._inside.frameworks.torch_dist"
_JAX = "xmp._inside.frameworks.jax"


class Channel(Protocol):
    """A replica's requests to its supervisor; the engine provides it."""

    @property
    def door(self) -> socket.socket:
        """The socket that its children need to make requests."""

    def share(
        self, key: str, make: Callable[[], T], owner: int | None = None, kept: bool = False
    ) -> T:
        """Have one local replica call ``make`` and return the value in all.

        The one is ``owner``, or the first to ask. The value is dropped when each of them has it,
        unless it is ``kept``.
        """

    def preempted(self, counts: bool) -> bool:
        """Return whether all replicas have agreed to end at this call; it may not count as one."""

    def beat(self) -> None:
        """Report progress from a child that shares no memory with the replica."""

    def meet(self, key: str, local_ranks: Sequence[int], seconds: float) -> str:
        """Wait until these local replicas have called this. Return who has not come in time."""

    def call_off(self, key: str, words: str) -> None:
        """End the meeting of others, which this replica refuses."""

    def turn(self, key: str) -> AbstractContextManager[None]:
        """Return a lock between the local replicas; it is released when its holder dies."""


class OwnRecord(Protocol):
    """A replica's own record; the engine provides it."""

    def beat(self) -> None: ...

    def entry(self, operation: str, site: bytes, detail: bytes, signature: int) -> Any:
        """Return what ``enter`` writes, prepared once for all calls that are alike."""

    def enter(self, entry: Any, group: int, members: int) -> int: ...

    def leave(self) -> None: ...

    def end_call(self) -> None: ...

    def differing(self, group: int, number: int, signature: int) -> list[int]: ...

    def read(self, local_rank: int) -> Record: ...


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
        self.outside = outside  # no launch of xmp made this process
        self.key = key  # None: no launch of xmp has given one
        self.is_alone = False  # the replica is the caller's process, as nprocs=1 asks
        self.is_apart = False  # a child of the replica that shares none of its memory
        self.is_script = False  # it runs a script, as a process of torchrun does
        self.call = CallState()
        self.record: OwnRecord | None = None  # of a replica whose supervisor looks at it
        self.pid, self.thread = _pid, _thread()
        self._checks: str | None = None

    def checks(self) -> bool:
        """Return whether calls of collectives are compared; XMP_CHECK is read once."""
        if self._checks is None:
            self._checks = os.environ.get("XMP_CHECK", "").strip().lower()
        return self._checks not in ("0", "off", "no", "false")

    def checks_hosts(self) -> bool:
        """Return whether the calls of other hosts are compared too."""
        return self.checks() and self._checks in ("1", "on", "yes", "true")

    def is_own(self) -> bool:
        """Return whether this is the replica's own thread, not another thread or a child of it."""
        return self.thread == _thread() and self.pid == _pid


_in_this_context: ContextVar[ReplicaState | None] = ContextVar("xmp_replica", default=None)
_in_this_process: ReplicaState | None = None
_outside: ReplicaState | None = None
_lock = threading.Lock()
_thread = threading.get_ident
_pid = os.getpid()
"""The pid of this process, kept: a system call costs a microsecond where a sandbox handles it."""


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
    record: OwnRecord | None = None,
) -> None:
    """Make this context that replica, and also the process unless it is one already."""
    global _in_this_process
    state = ReplicaState(info, framework, channel, key=key)
    state.is_alone, state.record = is_alone, record
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


def take_over(record: OwnRecord | None = None) -> None:
    """Make this process the replica that it has inherited from ``install``, and not its child."""
    state = _in_this_context.get()
    assert state is not None
    state.pid, state.thread, state.record = _pid, _thread(), record


def begin_call(number: int) -> None:
    """Begin a call of a gang: nothing that this replica counts is left of the last one."""
    state = current()
    state.call = CallState(number)
    begin: Callable[[int], None] | None = getattr(state.framework, "begin_call", None)
    if begin is not None:
        begin(number)


def gangs_call() -> CallState | None:
    """Return the call of a gang in which this replica is, unless it is the first; else None."""
    state = installed()
    return state.call if state is not None and state.call.number else None


def end_call() -> None:
    """Note that this replica is done with a call of a gang."""
    record = current().record
    if record is not None:
        record.end_call()


def begin_script() -> None:
    """Note that this replica runs a script from here on, which may launch functions as its rank."""
    current().is_script = True


def is_in_function() -> bool:
    """Return whether this is a replica that runs a function: a launch within it runs here."""
    return is_replica() and not current().is_script


def uninstall() -> None:
    """Undo ``install``: from here on this process is outside a replica."""
    global _in_this_process, _outside
    if _in_this_process is _in_this_context.get():
        _in_this_process = None
    _in_this_context.set(None)
    _outside = None


def replica() -> ReplicaInfo:
    """Return everything that is known about this replica, as one frozen value.

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
    """Wait until this replica's device has finished the work that it was given."""
    wait: Callable[[], None] | None = getattr(current().framework, "synchronize", None)
    if wait is not None:
        wait()


def local_rank() -> int:
    """Return this replica's index among those of its host: 0 … ``local_world_size() - 1``."""
    return current().info.local_rank


def local_world_size() -> int:
    """Return the number of replicas on this host; 1 outside a launch."""
    return current().info.local_world_size


def host_index() -> int:
    """Return the index of this host among the launch's hosts, from 0."""
    return current().info.host_index


def restart_count() -> int:
    """Return how often this launch has been restarted so far."""
    return current().info.restart_count


def is_thread() -> bool:
    """Return whether this replica is one of several threads of a process, each one a replica."""
    return int(current().info.settings.get("threads_per_process", "1")) > 1


def device() -> Any:
    """Return this replica's device, as its framework names it.

    That is ``torch.device("cuda", 3)``, ``torch.device("cpu")`` or a ``jax.Device``. Without a
    framework in the replica, and in its children with an interpreter of their own
    (multiprocessing's "spawn" and "forkserver"), it is the name that the plan gives it (a string).
    """
    state = current()
    framework = framework_of(state)
    return state.info.device if framework is None else framework.device()


def launch_key() -> bytes:
    """Return the key that the replicas of this launch share; empty if they share none."""
    state = current()
    return of_environment(state.info) if state.key is None else state.key


def channel() -> Channel | None:
    """Return this replica's channel to the supervisor; None outside a replica."""
    return current().channel


def in_a_replica() -> bool:
    """Return whether a launch has made this process, without reading an environment variable."""
    state = installed()
    return state is not None and state.channel is not None


def is_replica() -> bool:
    """Return whether this thread is a replica, even one that ``nprocs=1`` runs in the caller."""
    return installed() is not None


def whose_child() -> str:
    """Return in words which child of which replica this process is; empty if it is none."""
    state = current()
    if state.pid == _pid:
        return ""
    return f"process {_pid}, a child of rank {state.info.rank},"


def child_apart() -> Channel | None:
    """Return the channel of a child that shares no memory with its replica; None elsewhere."""
    state = installed()
    return state.channel if state is not None and state.is_apart else None


def installed() -> ReplicaState | None:
    """Return the replica that this thread is, or whose child it is; None outside a launch."""
    return _in_this_context.get() or _in_this_process or _of_the_parent()


def _of_the_parent() -> ReplicaState | None:
    """Return the replica that made this process by multiprocessing, with its own interpreter."""
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
    """Return what a child of this replica must know, for the configuration of its process object.

    Multiprocessing copies that to every child and to their children. The environment says who a
    replica is as well, but other programs inherit it, too.
    """
    state = current()
    if state.channel is None:
        return {}
    info = {**vars(state.info), "settings": dict(state.info.settings), "descriptors": {}}
    door, engine = state.channel.door, type(state.channel).__module__
    return {FOR_CHILDREN: {"info": info, "pid": state.pid, "door": door, "engine": engine}}


def current() -> ReplicaState:
    """Return the replica that this thread is; outside a launch, what the environment describes."""
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
    """Return the replica's framework; outside a launch, attach one that is loaded or installed."""
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
