"""What an agent process runs: the launcher of one host, for a driver that sends what to launch.

An agent makes one attempt after another, and keeps its templates between them. Each runs in a
thread of its own, so that the main thread always hears the driver: when that has gone, the agent
ends at once, and what it has started ends by its lifelines. No thread harms here: an agent is never
forked.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from xmp import _processes
from xmp._calls import host
from xmp._os import probe
from xmp._processes.messages import launcher_state
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed, Connection
from xmp._processes.messages.hosts import (
    Describe,
    Described,
    FilePart,
    FilePartRead,
    FileSizes,
    FilesSized,
    FindPath,
    HostCame,
    HostOver,
    PathFound,
    Ping,
    Pong,
    PortsHeld,
    Prepare,
    StartHost,
)
from xmp._processes.messages.launch import Interrupt, Kill, Stop, TakeStacks
from xmp._processes.messages.order import PackedCall
from xmp._processes.system import linux
from xmp._processes.system.descriptors import close_all
from xmp._processes.system.environment_changes import replace_environment
from xmp._words.errors import XmpError
from xmp._words.types import Observer

from . import files
from .meeting_port import at_port, held_port, holding
from .program_path import ProgramPath, path_here

if TYPE_CHECKING:
    from xmp._processes import Call, Launch
    from xmp._processes.messages.launcher_state import LauncherState

__all__ = ["answer", "main"]

_ENDINGS = (Interrupt, Stop, Kill)
_QUESTIONS = (Describe, FindPath, FileSizes, FilePart, Ping)
_ENTRY_WAIT = 0.25
"""Seconds for a launch to begin whose replicas may have reached the function already."""


def main(descriptor: int, lifeline: int) -> None:
    """Serve the driver at the other end of this socket; end with the driver, also while stopped."""
    _serve(descriptor, lifeline, launches=True)


def answer(descriptor: int, lifeline: int) -> None:
    """Answer the driver's questions, as ``main`` does; launch nothing."""
    _serve(descriptor, lifeline, launches=False)


def _serve(descriptor: int, lifeline: int, launches: bool) -> None:
    os.set_inheritable(descriptor, False)
    os.set_inheritable(lifeline, False)
    linux.arm(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the driver says who has ended it, and how
    # Ray blocks SIGINT in all that it starts (2.60, _private/services.py), and so in replicas.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    linux.set_name("xmp-agent")
    channel, own = Connection(descriptor), (dict(os.environ), list(sys.path))
    try:
        while True:
            message, files = channel.recv()
            if not launches and not isinstance(message, _QUESTIONS):
                close_all(files)
            elif isinstance(message, StartHost):
                HostAgent(channel, message, files, *own).serve()
            elif isinstance(message, Prepare):
                with contextlib.suppress(XmpError):  # the launch says so
                    host.warm_up(message.packages)
            elif isinstance(message, _QUESTIONS):
                channel.send(_answer(message, own[1]))
            # Anything else came too late for the launch before.
    except Closed:
        return


def _answer(message: Message, path: list[str]) -> Message:
    """Answer a question between two launches; ``path``: the agent's own ``sys.path``."""
    if isinstance(message, Describe):
        return Described(host.host_facts(), os.getpid())
    if isinstance(message, FindPath):
        return PathFound(path_here(ProgramPath(*message), path))
    if isinstance(message, FileSizes):
        return FilesSized(files.sizes(message.paths))
    if isinstance(message, FilePart):
        try:
            return FilePartRead(files.part(*message), "")
        except OSError as error:
            return FilePartRead(b"", error.strerror or str(error))
    return Pong(time.monotonic_ns())


class HostAgent:
    """One attempt. Two threads: the launch, and what hears the driver and sends it its reports."""

    def __init__(
        self,
        channel: Connection,
        start: StartHost,
        files: list[int],
        inherited: dict[str, str],
        path: list[str],
    ) -> None:
        """``inherited``, ``path``: variables and ``sys.path`` that the agent was started with."""
        self._channel = channel
        self._order, self._port = start.order, start.port
        self._image = files.pop(0) if start.order.call.image_data is None else -1
        self._streams = files
        self._inherited, self._path = inherited, path
        self._lock = threading.RLock()
        """Guards what waits to be sent."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._launch: Launch | None = None
        self._asked: list[Message] = []
        """Requests from before the launch."""
        self._started_it = threading.Event()
        self._over = False
        self.events = self._order.events
        self.phases = self._order.phases

    # --- the main thread: the driver -----------------------------------------------------------

    def serve(self) -> None:
        """Serve the driver until it has been sent the last message."""
        self._take_surroundings()
        thread = threading.Thread(target=self._run, name="xmp-launch", daemon=True)
        thread.start()
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        try:
            while not (self._over and not self._channel.waiting):
                wanted = select.POLLOUT if self._channel.waiting else 0
                poller.register(self._channel.fileno(), select.POLLIN | wanted)
                ready = dict(poller.poll())
                if self._wake_read in ready:
                    os.read(self._wake_read, 4096)
                self._flush()
                heard = ready.get(self._channel.fileno(), 0) & ~select.POLLOUT
                if heard and not self._over:  # what comes after it may be the next order
                    self._heard(self._channel.recv()[0])
        except Closed:
            if not self._over:
                os._exit(1)  # the driver has ended: so must all below, without waiting for it
        thread.join()
        for descriptor in (self._wake_read, self._wake_write, self._image):
            if descriptor >= 0:
                os.close(descriptor)

    def _take_surroundings(self) -> None:
        """Take what a new agent would have inherited from the driver, which may have changed it."""
        order = self._order
        inherited = self._inherited if order.inherited is None else order.inherited
        replace_environment({**inherited, **order.environment})
        probe.variables_replaced()
        path = self._path if order.search_path is None else order.search_path
        if sys.path != path:
            sys.path[:] = path
            _processes.search_path_changed()
        sys.argv[:] = order.call.state.argv
        if order.inherited is not None:
            launcher_state.apply_surroundings(order.call.state)
        self._take_streams(self._streams)

    def _take_streams(self, streams: list[int]) -> None:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)

    def _leave_streams(self) -> None:
        """Keep no stream of the driver's open: what reads it waits for its end."""
        if self._streams:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            self._take_streams([os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) for _ in range(3)])

    def _heard(self, message: Message) -> None:
        if isinstance(message, _ENDINGS) and not self._started_it.wait(_ENTRY_WAIT):
            os._exit(1)  # nothing of the user's runs yet
        with self._lock:
            if self._launch is None:
                self._asked.append(message)
                return
        self._pass_on(message)

    def _flush(self) -> None:
        with self._lock:
            self._channel.flush()

    # --- the launch's thread -------------------------------------------------------------------

    def begins(self) -> None:
        """Report that all hosts have come."""
        self.send(HostCame())

    def take(self, message: Message, descriptors: Sequence[int]) -> None:
        """Pass on what the supervisor reports; large results as the files that they are."""
        self.send(message, descriptors)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send as soon as the driver reads; the launch must not wait for that."""
        with self._lock:
            try:
                self._channel.post(message, list(descriptors))
                done = self._channel.flush()
            except Closed:
                return  # the main thread sees it, too
        if not done:
            self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b".")
        except BlockingIOError:
            pass  # it has enough to read

    def _run(self) -> None:
        error: BaseException | None = None
        launch: Launch | None = None
        try:
            launch = self._started()
            with self._lock:
                self._launch, asked = launch, self._asked
            self._started_it.set()
            for message in asked:
                self._pass_on(message)
            launch.wait(None)
            launch.raise_error()
        except BaseException as raised:
            error = raised
        self._started_it.set()
        over = self._last_message(error)
        if launch is not None:
            launch.leave_hosts()
        self._leave_streams()
        self._over = True  # before the driver can answer
        self.send(over)
        self._wake()

    def _pass_on(self, message: Message) -> None:
        """Ask the launch for what the driver asks for, which alone waits for stacks."""
        assert self._launch is not None
        tell = self._launch.order if isinstance(message, TakeStacks) else self._launch.ask
        tell(message)

    def _last_message(self, error: BaseException | None) -> HostOver:
        if self._launch is None:
            return HostOver(type(error).__name__, str(error))
        outcome = self._launch.outcome
        found = outcome.elsewhere, outcome.leftovers, outcome.memory
        if error is None:
            return HostOver("", "", False, *found)
        mends = self._launch.may_mend(error)
        return HostOver(type(error).__name__, str(error), mends, *found)

    def _started(self) -> Launch:
        request, held = self._order.request, None
        if self._port:
            request = at_port(request, self._port)
        else:
            request, held = holding(request)
            self.send(PortsHeld(held_port(request)))
        return host.attempt(request, self._call(), held, self._order.called)

    def _call(self) -> Call:
        from xmp._processes import Call

        order = self._order
        limits = (
            order.settings.limits
        )  # of all attempts together, and of those before the agent was asked
        limits = limits and replace(limits, first=limits.first or order.called)
        packed = replace(order.call, image=self._image)
        if order.inherited is None:  # another machine: its folder, limits, cores, sys.path
            packed = replace(packed, state=_state_here(packed.state, order.program_path))
        settings = replace(order.settings, limits=limits, daemon=False)
        observer = Observer(None, False)
        return Call(_named(packed), settings=settings, observer=observer, packed=packed, relay=self)


def _named(call: PackedCall) -> Any:
    """Stands for the function, of which an agent knows the name alone."""
    return SimpleNamespace(__qualname__=call.name, __module__=call.module)


def _state_here(driver: LauncherState, path: list[str]) -> LauncherState:
    """Return the state of this process, with what belongs to the program."""
    own, _ = launcher_state.capture()
    return replace(
        own, name=driver.name, path=path, argv=driver.argv, authkey=driver.authkey,
        ignored=driver.ignored, traced=driver.traced, write_bytecode=driver.write_bytecode,
        shadows=driver.shadows,
    )  # fmt: skip
