"""Who of the replicas debugs: one at a time; meanwhile no clock of the launch runs.

Nobody is stopped: the others go on until they wait for the one at its breakpoint. What fails
meanwhile is dealt with when the debugger is left.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from xmp._events import Event, Pause, Resume

from .flow import Flow
from .loop import Loop
from .members import Member
from .output import Sink
from .wire import Closed, Wire

__all__ = ["Debugging"]

_WHY = "debugger"
_PATIENCE = 2  # Python's readline forgets a signal that comes just before it waits for a key


@dataclass(eq=False)
class _Turn:
    """A replica at a breakpoint, and the connection on which it waits for the terminal."""

    member: Member
    rank: int
    wire: Wire
    lent: bool = False

    def answer(self, message: tuple[Any, ...], descriptors: Sequence[int] = ()) -> None:
        self.wire.post(message, list(descriptors))
        try:
            self.wire.flush()
        except Closed:
            pass  # its end is noticed where children are reaped


class Debugging:
    """Made at the first breakpoint of a launch."""

    def __init__(
        self,
        loop: Loop,
        flow: Flow,
        errors: Sink,
        tell: Callable[[tuple[Any, ...]], None],
        feed: Callable[[Event], None],
    ) -> None:
        self._loop = loop
        self._flow = flow
        self._errors = errors
        self._tell = tell
        self._feed = feed
        self._line: deque[_Turn] = deque()
        """The first of them has the terminal, or waits for the launcher's answer."""
        self._unheard = 0
        """How often Ctrl-C was passed on since the last prompt."""
        self._over = False
        self._holds = False
        self._said = False
        self.quitters: set[Member] = set()
        """Who is on its way out already."""

    # --- the replicas --------------------------------------------------------------------------

    def arrive(self, member: Member, rank: int, descriptor: int) -> None:
        """A replica is at a breakpoint."""
        turn = _Turn(member, rank, Wire(descriptor))
        self._loop.listen(descriptor, partial(self._hear, turn))
        self._line.append(turn)
        if self._over:
            turn.answer(("refused", "the launch is being ended"))
            return
        if len(self._line) > 1:
            self._say(f"rank {rank} is at a breakpoint, too; it waits for its turn")
            return
        self._holds = True
        self._feed(Pause(time.monotonic_ns(), _WHY))
        self._next()

    def _next(self) -> None:
        turn = self._line[0]
        self._unheard = 0
        self._say(f"rank {turn.rank} is at a breakpoint (pid {turn.member.pid})")
        self._tell(("debugging", "breakpoint", (turn.rank, turn.member.pid)))

    def _hear(self, turn: _Turn) -> None:
        try:
            (name,), _ = turn.wire.recv()
        except Closed:
            name = "left"
        if name == "sync":
            self._unheard = 0
            self._flow.hurry(turn.member.sources)
            turn.answer(("synced",))
        elif name == "quit":
            self.quitters.add(turn.member)
            self._leave(turn, f"the debugger of rank {turn.rank} was quit")
        else:
            self._leave(turn)

    def _leave(self, turn: _Turn, why: str = "") -> None:
        """It runs on or is gone; ``why`` the launch shall end, if it shall."""
        self._loop.forget(turn.wire.fileno())
        turn.wire.close()
        first = self._line[0] is turn
        self._line.remove(turn)
        if first and not self._over:
            self._tell(("debugging", "left", why))
        self._over = self._over or bool(why)
        if self._line and first and not self._over:
            self._next()
        elif not self._line:
            self._release()

    def _release(self) -> None:
        """The clocks may go on."""
        if self._holds:
            self._holds = False
            self._feed(Resume(time.monotonic_ns(), _WHY))

    def forget(self, member: Member) -> None:
        """A replica has ended."""
        for turn in [turn for turn in self._line if turn.member is member]:
            self._leave(turn)

    def failing(self) -> None:
        """A replica has failed while another one debugs."""
        if self._line and not self._over and not self._said:
            self._said = True
            self._say("a replica has failed; the launch ends when the debugger is left")

    # --- the launcher --------------------------------------------------------------------------

    def told(self, descriptors: list[int], name: str, *rest: Any) -> None:
        """The launcher's answer, or Ctrl-C in its terminal."""
        if name == "interrupt":
            self._interrupt()
            return
        rank, value = rest
        turn = self._line[0] if self._line else None
        if turn is not None and turn.rank == rank and not turn.lent:
            turn.lent = name == "lent"
            turn.answer((name, value), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _interrupt(self) -> None:
        turn = self._line[0] if self._line else None
        if turn is None or self._unheard == _PATIENCE:
            # Nobody debugs any more, or the debugger cannot hear: then it is everybody's.
            self._tell(("debugging", "left", "Ctrl-C"))
            return
        self._unheard += 1
        if not turn.member.plan.mates:  # it would interrupt the thread that waits for all others
            turn.member.signal(signal.SIGINT)
        if self._unheard == _PATIENCE:
            self._say(f"rank {turn.rank} has not reacted; Ctrl-C once more ends the launch")

    def end(self) -> None:
        """The launch is being ended: nobody waits for debuggers any more."""
        self._over = True
        self._release()

    def _say(self, line: str) -> None:
        self._errors.put_lines(f"xmp: {line}\n".encode())
