"""The replica at a breakpoint: one at a time has the terminal, and no deadline runs.

It asks when it has the turn, for which replicas wait as for any other (``SharedValues``). The other
replicas are not stopped: they go on until they wait for the one at its breakpoint. If a replica
fails meanwhile, the launch ends when the debugger is left.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed, Connection
from xmp._processes.messages.launch import AnswerDebugger, AtBreakpoint, DebuggerLeft
from xmp._processes.messages.plain_format import Malformed
from xmp._processes.messages.replica import Synced, Synchronise
from xmp._processes.messages.untrusted import Arrived, UntrustedConnection
from xmp._processes.output.event_loop import EventLoop, OutputPump
from xmp._processes.system.descriptors import close_all
from xmp._rules.watch_events import Pause, Resume, WatchEvent

from .replica_handle import ReplicaHandle

__all__ = ["Debugging"]

_WHY = "debugger"
_PATIENCE = 2  # Python's readline forgets a signal that comes just before it waits for a key


@dataclass(eq=False)
class _Loan:
    """A replica at a breakpoint, and the connection on which it waits for the terminal."""

    replica: ReplicaHandle
    rank: int
    connection: UntrustedConnection
    lent: bool = False

    def answer(self, message: Message, *descriptors: int) -> None:
        self.connection.post(message, descriptors)
        try:
            self.connection.flush()
        except Closed:
            pass  # its end is noticed where children are reaped


class Debugging:
    """The breakpoints of a launch; made at its first one."""

    def __init__(
        self,
        loop: EventLoop,
        pump: OutputPump,
        launcher: Connection,
        feed: Callable[[WatchEvent], None],
        condemn: Callable[[ReplicaHandle, str], None],
        say: Callable[[str], None],
        ending: bool,
    ) -> None:
        """Wait for the first breakpoint. ``ending``: the launch is being ended already.

        ``feed`` lets the failure rules decide on an event; ``condemn`` is called for a replica with
        a wrong message, ``say`` with lines for the user.
        """
        self._loop, self._pump, self._launcher = loop, pump, launcher
        self._feed, self._condemn, self._say = feed, condemn, say
        self._loan: _Loan | None = None
        self._interrupts = 0
        """The number of Ctrl-C passed on since the last prompt."""
        self._ending = ending
        self._said_failing = False
        self.quitters: set[ReplicaHandle] = set()
        """The replicas whose debugger was quit: they end by themselves."""

    def arrive(self, replica: ReplicaHandle, rank: int, arrived: Arrived) -> None:
        """Ask the launcher for its terminal, for a replica, or a child of it, that has the turn."""
        (descriptor,) = arrived.descriptors
        connection = UntrustedConnection.given(descriptor, arrived.sender)
        if self._loan is not None:  # it has the turn no longer, so its process has ended
            self._leave(self._loan)
        self._loan = loan = _Loan(replica, rank, connection)
        self._loop.listen(descriptor, partial(self._hear, loan))
        if self._ending:
            loan.answer(AnswerDebugger(rank, "the launch is being ended"))
            return
        self._interrupts = 0
        self._feed(Pause(time.monotonic_ns(), _WHY))
        self._say(f"rank {rank} is at a breakpoint (pid {replica.pid})")
        self._launcher.post(AtBreakpoint(rank, replica.pid))

    def _hear(self, loan: _Loan) -> None:
        try:
            arrived = loan.connection.take()
        except Closed:
            self._leave(loan)
            return
        except Malformed as why:
            self._refuse(loan, str(why))
            return
        if arrived is None:
            return
        message = arrived.message
        close_all(arrived.descriptors)
        if isinstance(message, Synchronise):
            self._interrupts = 0
            self._pump.hurry(loan.replica.sources)
            loan.answer(Synced())
        elif isinstance(message, DebuggerLeft):
            if message.why:
                self.quitters.add(loan.replica)
            self._leave(loan, message.why)
        else:
            self._refuse(loan, f"no debugger sends a {type(message).__name__}")

    def _refuse(self, loan: _Loan, why: str) -> None:
        self._leave(loan)
        self._condemn(loan.replica, why)

    def _leave(self, loan: _Loan, why: str = "") -> None:
        """Take the terminal from a replica that runs on or has ended; the deadlines run again."""
        self._loop.forget(loan.connection.fileno())
        loan.connection.close()
        self._loan = None
        if not self._ending:
            self._launcher.post(DebuggerLeft(why))
            self._ending = bool(why) or self._said_failing  # the next one gets no prompt
            self._feed(Resume(time.monotonic_ns(), _WHY))

    def forget(self, replica: ReplicaHandle) -> None:
        if self._loan is not None and self._loan.replica is replica:
            self._leave(self._loan)

    def failing(self) -> None:
        """Say, once, that a replica has failed while another one debugs."""
        if self._loan is not None and not self._ending and not self._said_failing:
            self._said_failing = True
            self._say("a replica has failed; the launch ends when the debugger is left")

    def answer(self, message: AnswerDebugger, descriptors: list[int]) -> None:
        """Pass on that the launcher lends its terminal, or refuses."""
        loan = self._loan
        if loan is not None and loan.rank == message.rank and not loan.lent:
            loan.lent = not message.refusal
            loan.answer(message, *descriptors)
        close_all(descriptors)

    def interrupt(self) -> None:
        """Handle Ctrl-C in the lent terminal: interrupt the replica; the third time, the launch."""
        loan = self._loan
        if loan is None or self._interrupts == _PATIENCE:
            # No replica debugs any more, or the debugger does not react: Ctrl-C ends the launch.
            self._launcher.post(DebuggerLeft("Ctrl-C"))
            return
        self._interrupts += 1
        # With thread replicas it would interrupt the thread that waits for all others.
        if not loan.replica.plan.thread_replicas:
            loan.replica.signal(signal.SIGINT)
        if self._interrupts == _PATIENCE:
            self._say(f"rank {loan.rank} has not reacted; Ctrl-C once more ends the launch")

    def end(self) -> None:
        """Stop waiting for the debugger: the launch is being ended."""
        if self._loan is not None and not self._ending:
            self._feed(Resume(time.monotonic_ns(), _WHY))
        self._ending = True
