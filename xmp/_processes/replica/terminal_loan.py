"""The launcher's terminal or other standard input, lent to one thread of a replica.

A replica is in another session, where neither Ctrl-C nor the rules for background jobs reach it,
and its standard input is /dev/null. So it asks the launcher, through the supervisor, for the
launcher's input.
"""

from __future__ import annotations

import os
from typing import Any

from xmp import _inside
from xmp._processes.messages.connection import Closed, Connection, pair
from xmp._processes.messages.launch import AnswerDebugger, DebuggerLeft
from xmp._processes.messages.replica import BreakpointReached, Synchronise
from xmp._processes.system.stdio import flush

__all__ = ["TerminalLoan"]


class TerminalLoan:
    """The launcher's terminal, or its other standard input; taken and given back repeatedly."""

    def __init__(self) -> None:
        self.rank = _inside.rank()
        self.source = self.sink = -1
        """The descriptors from which the debugger reads and to which it writes."""
        self._connection: Connection | None = None
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
        ours, theirs = pair()
        ours.opens_pickles = False
        try:
            channel.send_apart(BreakpointReached(self.rank), [theirs.fileno()])
            theirs.close()
            answer, descriptors = ours.expect(AnswerDebugger)
            if answer.refusal:
                raise RuntimeError(answer.refusal)
        except BaseException:
            ours.close()
            raise
        self._connection = ours
        self.source, self.sink = descriptors
        self._before = os.dup(0)
        os.dup2(self.source, 0)  # for input() in the code that is stepped over
        return True

    def catch_up(self) -> None:
        """Wait until the supervisor has passed on what this replica has written so far."""
        flush()
        if self._connection is not None:
            try:
                self._connection.send(Synchronise())
                self._connection.recv()
            except Closed:
                pass  # the supervisor was killed, and this replica will be

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
        for descriptor in (self._before, self.source, self.sink):
            os.close(descriptor)
        try:
            # Closing is not enough: children that were forked meanwhile hold a copy.
            connection.send(DebuggerLeft(why))
        except Closed:
            pass
        connection.close()
