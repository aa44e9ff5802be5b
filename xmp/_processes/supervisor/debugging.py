"""The queue of replicas at a breakpoint: one at a time has the terminal, and no deadline runs.

The other replicas are not stopped: they go on until they wait for the one at its breakpoint. If a
replica fails meanwhile, the launch ends when the debugger is left.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.launch import AnswerDebugger, AtBreakpoint, DebuggerLeft
from xmp._processes.messages.plain_format import Malformed
from xmp._processes.messages.replica import Synced, Synchronise
from xmp._processes.messages.untrusted import Arrived, UntrustedConnection
from xmp._processes.system.descriptors import close_all
from xmp._rules.events import Pause, Resume

from .replica_handle import ReplicaHandle

if TYPE_CHECKING:
    from .monitor import Monitor

__all__ = ["DebuggerQueue"]

_WHY = "debugger"
_MOST_TURNS = 64
_PATIENCE = 2  # Python's readline forgets a signal that comes just before it waits for a key


@dataclass(eq=False)
class _Turn:
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


class DebuggerQueue:
    """The breakpoints of a launch; made at its first one."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._turns: deque[_Turn] = deque()
        """The first one has the terminal, or waits for the launcher's answer."""
        self._interrupts = 0
        """The number of Ctrl-C passed on since the last prompt."""
        self._ending = monitor.ending
        self._paused = False
        self._said_failing = False
        self.quitters: set[ReplicaHandle] = set()
        """The replicas whose debugger was quit: they end by themselves."""

    def arrive(self, replica: ReplicaHandle, rank: int, arrived: Arrived) -> None:
        """Queue a replica, or a child of it, that has sent one end of a connection for this."""
        (descriptor,) = arrived.descriptors
        waiting = sum(turn.replica is replica for turn in self._turns)
        if waiting >= _MOST_TURNS:
            os.close(descriptor)
            raise Malformed(f"{waiting} threads or children of it are at breakpoints already")
        connection = UntrustedConnection.given(descriptor, arrived.sender)
        turn = _Turn(replica, rank, connection)
        self._monitor.loop.listen(descriptor, partial(self._hear, turn))
        self._turns.append(turn)
        if self._ending:
            turn.answer(AnswerDebugger(rank, "the launch is being ended"))
        elif len(self._turns) > 1:
            self._say(f"rank {rank} is at a breakpoint, too; it waits for its turn")
        else:
            self._paused = True
            self._monitor.feed(Pause(time.monotonic_ns(), _WHY))
            self._next()

    def _next(self) -> None:
        turn = self._turns[0]
        self._interrupts = 0
        self._say(f"rank {turn.rank} is at a breakpoint (pid {turn.replica.pid})")
        self._monitor.connection.post(AtBreakpoint(turn.rank, turn.replica.pid))

    def _hear(self, turn: _Turn) -> None:
        try:
            arrived = turn.connection.take()
        except Closed:
            self._leave(turn, DebuggerLeft(""))
            return
        except Malformed as why:
            self._condemn(turn, str(why))
            return
        if arrived is None:
            return
        message = arrived.message
        close_all(arrived.descriptors)
        if isinstance(message, Synchronise):
            self._interrupts = 0
            self._monitor.pump.hurry(turn.replica.sources)
            turn.answer(Synced())
        elif isinstance(message, DebuggerLeft):
            if message.why:
                self.quitters.add(turn.replica)
            self._leave(turn, message)
        else:
            self._condemn(turn, f"no debugger sends a {type(message).__name__}")

    def _condemn(self, turn: _Turn, why: str) -> None:
        self._leave(turn, DebuggerLeft(""))
        self._monitor.condemn(turn.replica, why)

    def _leave(self, turn: _Turn, message: DebuggerLeft) -> None:
        """Remove a replica that runs on or has ended, and let the next one have the terminal."""
        self._monitor.loop.forget(turn.connection.fileno())
        turn.connection.close()
        first = self._turns[0] is turn
        self._turns.remove(turn)
        if first and not self._ending:
            self._monitor.connection.post(message)
        self._ending = self._ending or bool(message.why)
        if self._turns and first and not self._ending:
            self._next()
        elif not self._turns:
            self._release()

    def _release(self) -> None:
        """Let the deadlines run again."""
        if self._paused:
            self._paused = False
            self._monitor.feed(Resume(time.monotonic_ns(), _WHY))

    def forget(self, replica: ReplicaHandle) -> None:
        for turn in [turn for turn in self._turns if turn.replica is replica]:
            self._leave(turn, DebuggerLeft(""))

    def failing(self) -> None:
        """Say, once, that a replica has failed while another one debugs."""
        if self._turns and not self._ending and not self._said_failing:
            self._said_failing = True
            self._say("a replica has failed; the launch ends when the debugger is left")

    def answer(self, message: AnswerDebugger, descriptors: list[int]) -> None:
        """Pass on that the launcher lends its terminal, or refuses."""
        turn = next(iter(self._turns), None)
        if turn is not None and turn.rank == message.rank and not turn.lent:
            turn.lent = not message.refusal
            turn.answer(message, *descriptors)
        close_all(descriptors)

    def interrupt(self) -> None:
        """Handle Ctrl-C in the lent terminal: interrupt the replica; the third time, the launch."""
        turn = next(iter(self._turns), None)
        if turn is None or self._interrupts == _PATIENCE:
            # No replica debugs any more, or the debugger does not react: Ctrl-C ends the launch.
            self._monitor.connection.post(DebuggerLeft("Ctrl-C"))
            return
        self._interrupts += 1
        # With thread replicas it would interrupt the thread that waits for all others.
        if not turn.replica.plan.thread_replicas:
            turn.replica.signal(signal.SIGINT)
        if self._interrupts == _PATIENCE:
            self._say(f"rank {turn.rank} has not reacted; Ctrl-C once more ends the launch")

    def end(self) -> None:
        """Stop waiting for debuggers: the launch is being ended."""
        self._ending = True
        self._release()

    def _say(self, line: str) -> None:
        if self._monitor.displays is not None:
            return  # a notebook lends no terminal: the replica's error says so
        self._monitor.errors.put_lines(f"xmp: {line}\n".encode())
