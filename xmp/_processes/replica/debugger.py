"""pdb on the launcher's terminal, from the first prompt until the program continues.

A replica is in another session, where neither Ctrl-C nor the rules for background jobs reach it,
and its standard input is /dev/null. So it asks the launcher, through the supervisor, for the
launcher's terminal or other standard input, which is lent to one thread of a replica.
"""

from __future__ import annotations

import bdb
import io
import os
import pdb
import sys
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

from xmp import _inside
from xmp._processes.messages.connection import Closed, Connection, pair
from xmp._processes.messages.launch import AnswerDebugger, DebuggerLeft
from xmp._processes.messages.replica import BreakpointReached, Synchronise
from xmp._processes.system.descriptors import close_all
from xmp._processes.system.stdio import flush

__all__ = ["Debugger"]


class TerminalLoan:
    """The launcher's terminal, or its other standard input; taken and given back repeatedly."""

    def __init__(self) -> None:
        self.rank = _inside.rank()
        self.source = self.sink = -1
        """The descriptors from which the debugger reads and to which it writes."""
        self._connection: Connection | None = None
        self._held = ExitStack()
        """What a loan keeps: the turn and the connection."""
        self._before = -1

    def take(self) -> bool:
        """Wait until the terminal is lent. Return False if this thread has it already.

        Raises RuntimeError, which says what to do, if the launcher has nothing to read from.
        """
        if self._connection is not None:
            return False
        channel: Any = _inside.channel()
        if channel is None:
            raise RuntimeError(
                "breakpoint() works in a replica's function; here the script is still imported "
                "or the function loaded, for all replicas at once and without a terminal"
            )
        flush()
        with ExitStack() as stack:
            stack.enter_context(channel.turn("debugger"))
            ours, theirs = pair()
            stack.callback(ours.close)
            ours.opens_pickles = False
            channel.send_apart(BreakpointReached(self.rank), [theirs.fileno()])
            theirs.close()
            answer, descriptors = ours.expect(AnswerDebugger)
            if answer.refusal:
                raise RuntimeError(answer.refusal)
            self._connection, self._held = ours, stack.pop_all()
        self.source, self.sink = descriptors
        self._before = os.dup(0)
        os.dup2(self.source, 0)  # for input() in the code that is stepped over
        return True

    def catch_up(self) -> None:
        """Wait until the supervisor has passed on what this replica has written so far."""
        flush()
        if self._connection is not None:
            with suppress(Closed):  # the supervisor was killed, and this replica will be
                self._connection.send(Synchronise())
                self._connection.recv()

    @property
    def editable(self) -> bool:
        """Whether standard output is the same terminal: then ``input()`` has readline."""
        if not os.isatty(self.source) or not os.isatty(1):
            return False
        return os.fstat(1).st_rdev == os.fstat(self.source).st_rdev

    def give_back(self, why: str = "") -> None:
        """Give the terminal back for the next one; ``why`` the launch must end, else empty."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        flush()
        os.dup2(self._before, 0)
        close_all((self._before, self.source, self.sink))
        # Closing is not enough: children that were forked meanwhile hold a copy.
        with suppress(RuntimeError), self._held, suppress(Closed):
            connection.send(DebuggerLeft(why))


class Debugger(pdb.Pdb):
    """The debugger of one thread, which steps over xmp's own frames."""

    def __init__(self) -> None:
        # After "continue", Ctrl-C is the launcher's again: pdb's own handler would stop here.
        super().__init__(nosigint=True, skip=["xmp", "xmp.*"])
        self.owner = os.getpid()
        self._loan = TerminalLoan()
        self.prompt = f"(Pdb rank {self._loan.rank}) "

    def begin(self, header: str | None = None) -> None:
        """Take the terminal, and read and write there once this replica's output has been shown."""
        if self._loan.take():
            streams: Any = (sys.stdin, sys.stdout)
            self.use_rawinput = self._loan.editable and None not in streams
            if not self.use_rawinput:
                # Standard output is captured or goes elsewhere: no prompt would be seen there.
                sink = os.fdopen(self._loan.sink, "w", -1, "utf-8", "replace", closefd=False)
                streams = (_Lines(self._loan.source), sink)
            self.stdin, self.stdout = streams
        self._loan.catch_up()
        if header is not None:
            self.message(header)

    def interaction(self, *args: Any, **rest: Any) -> None:
        self.begin()
        super().interaction(*args, **rest)

    def preloop(self) -> None:
        """Let the output catch up, before the first prompt and after each Ctrl-C."""
        self._loan.catch_up()
        super().preloop()

    def postcmd(self, stop: bool, line: str) -> bool:
        self._loan.catch_up()
        return super().postcmd(stop, line)

    def set_continue(self) -> None:
        super().set_continue()
        self._loan.give_back()

    def set_quit(self) -> None:
        super().set_quit()
        self._loan.give_back(f"the debugger of rank {self._loan.rank} was quit")

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Trace as pdb does, but interrupt on quitting: ``except Exception`` catches a BdbQuit."""
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            raise KeyboardInterrupt("the debugger was quit") from None


class _Lines(io.TextIOBase):
    """A reader that reads one line and no more: the rest of a pipe is the next debugger's."""

    def __init__(self, descriptor: int) -> None:
        self._bytes = io.FileIO(descriptor, closefd=False)

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        return self._bytes.readline().decode(errors="replace")  # without a buffer: byte by byte
