"""What an agent process runs: the launcher of one host, for a driver that sends what to launch.

The launch runs in a thread of its own, so that the main thread always hears the driver: when that
has gone, the agent ends at once, and what it has started ends by its lifelines. No thread harms
here: an agent is never forked.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from xmp._errors import PortError
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed, Connection
from xmp._processes.messages.hosts import (
    AttemptBegins,
    AttemptOver,
    HostOver,
    PackedCall,
    PortsHeld,
    StartHost,
)
from xmp._processes.messages.launch import Interrupt, Kill, SetGrace, Stop, TakeStacks
from xmp._processes.system import linux
from xmp._types import HostsByHand, Request

if TYPE_CHECKING:
    from xmp._host_words import HostFailure
    from xmp._ports import PortLease
    from xmp._processes import Call, ProcessContext

__all__ = ["main"]

_ENDINGS = (Interrupt, Stop, Kill)
_FIRST, _LAST = 10_000, 30_000
"""Linux gives ports from 32768 up to programs that ask for any (ip_local_port_range, ip(7))."""
_TRIES = 20
_ENTRY_WAIT = 0.25
"""Seconds for a launch to begin whose replicas may have reached the function already."""


def main(descriptor: int, lifeline: int) -> None:
    """Serve the driver at the other end of this socket; end with the driver, also while stopped."""
    os.set_inheritable(descriptor, False)
    os.set_inheritable(lifeline, False)
    linux.arm(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the driver says who has ended it, and how
    linux.set_name("xmp-agent")
    channel = Connection(descriptor)
    try:
        start, files = channel.expect(StartHost)
    except Closed:
        return
    HostAgent(channel, start, files).serve()


class HostAgent:
    """Two threads: the launch, and what hears the driver and sends it what the launch reports."""

    def __init__(self, channel: Connection, start: StartHost, files: list[int]) -> None:
        self._channel = channel
        self._order, self._port = start.order, start.port
        self._files = files
        self._lock = threading.RLock()
        """Guards what waits to be sent."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._launch: Any = None
        self._asked: list[Message] = []
        """Requests from before the launch."""
        self._started_it = threading.Event()
        self._over = False
        self.events = self._order.events
        self.phases = self._order.phases

    # --- the main thread: the driver -----------------------------------------------------------

    def serve(self) -> None:
        """Until the driver has the last message and has closed its end."""
        state = self._order.call.state
        sys.path[:], sys.argv[:] = self._order.search_path, state.argv
        os.environ.update(self._order.environment)
        threading.Thread(target=self._run, name="xmp-launch", daemon=True).start()
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        try:
            while True:
                wanted = select.POLLOUT if self._channel.waiting else 0
                poller.register(self._channel.fileno(), select.POLLIN | wanted)
                ready = dict(poller.poll())
                if self._wake_read in ready:
                    os.read(self._wake_read, 4096)
                self._flush()
                if ready.get(self._channel.fileno(), 0) & ~select.POLLOUT:
                    self._heard(self._channel.recv()[0])
        except Closed:
            if not self._over:
                os._exit(1)  # the driver has ended: so must all below, without waiting for it

    def _heard(self, message: Message) -> None:
        if isinstance(message, _ENDINGS) and not self._started_it.wait(_ENTRY_WAIT):
            os._exit(1)  # nothing of the user's runs yet
        with self._lock:
            launch = self._launch
            if launch is None:
                self._asked.append(message)
                return
        _pass_on(launch, message)

    def _flush(self) -> None:
        with self._lock:
            self._channel.flush()

    # --- the launch's thread -------------------------------------------------------------------

    def begins(self, number: int) -> None:
        """An attempt begins: all hosts have come."""
        self.send(AttemptBegins(number))

    def ends(self, verdict: HostFailure | None, leftovers: str) -> None:
        """An attempt is over on this host."""
        self.send(AttemptOver(verdict, leftovers))

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
        try:
            context = self._started()
            launch: Any = context._launch
            with self._lock:
                self._launch, asked = launch, self._asked
            self._started_it.set()
            for message in asked:
                _pass_on(launch, message)
            launch.wait(None)
            launch.raise_error()
        except BaseException as raised:
            error = raised
        self._started_it.set()
        with self._lock:
            self._over = True
        self.send(HostOver(type(error).__name__, str(error)) if error else HostOver("", ""))

    def _started(self) -> ProcessContext[Any]:
        from xmp import _host
        from xmp._processes import ProcessContext

        called = time.monotonic_ns() - self._order.elapsed
        request, held = self._order.request, None
        if self._port:
            request = _at_port(request, self._port)
        else:
            request, held = _holding(request)
            self.send(PortsHeld(_port_of(request)))
        context = _host.launch(request, self._call(called), join=False, held=held)
        assert isinstance(context, ProcessContext)
        return context

    def _call(self, called: int) -> Call:
        from xmp._processes import Call
        from xmp._types import Observer

        order = self._order
        limits = order.limits and replace(order.limits, first=called)
        packed = replace(order.call, image=self._files[0] if self._files else -1)
        return Call(
            _named(packed), limits=limits, observer=Observer(None, False), packed=packed,
            relay=self, host_name=order.host_name, **order.options,
        )  # fmt: skip


def _named(call: PackedCall) -> Any:
    """Stands for the function, of which an agent knows the name alone."""
    return SimpleNamespace(__qualname__=call.name, __module__=call.module)


def _pass_on(launch: Any, message: Message) -> None:
    attempt = getattr(launch, "attempt", launch)
    if isinstance(message, TakeStacks):
        attempt.order(message)  # the relay has the answer
    elif isinstance(message, (*_ENDINGS, SetGrace)):
        launch.ask(message)
    else:
        attempt.ask(message)


# --- ports --------------------------------------------------------------------------------------


def _at_port(request: Request, port: int) -> Request:
    assert isinstance(request.world, HostsByHand)
    return replace(request, world=replace(request.world, port=port))


def _port_of(request: Request) -> int:
    return request.world.port if isinstance(request.world, HostsByHand) else 0


def _holding(request: Request) -> tuple[Request, PortLease]:
    """The request with a port from which on all that host 0 needs is free, and held."""
    from xmp import _host, _ports

    known, failed = _host.host_facts(), None
    for _ in range(_TRIES):
        tried = _at_port(request, random.SystemRandom().randrange(_FIRST, _LAST))
        try:
            return tried, _ports.lease(_host.plan_for(tried, known).needs)
        except PortError as error:
            failed = error
    assert failed is not None
    raise failed
