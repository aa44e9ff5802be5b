"""``breakpoint()`` in a replica: it borrows the launcher's terminal while somebody debugs.

The replica is in a session of its own, where neither Ctrl-C nor the rules for background jobs
reach it, and its standard input is nowhere. So it asks, through the supervisor, for what the
launcher reads from, and gives that back when the program continues.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from xmp import _breakpoint, _inside

from .wire import Closed, Wire, pair

__all__ = ["Loan", "install"]

_PLAIN = ("", "pdb.set_trace")
"""The values of PYTHONBREAKPOINT that mean Python's own debugger."""
_mine = threading.local()


def install() -> None:
    """Before replicas are forked: ``breakpoint()`` is ours, unless the program has its own."""
    if sys.breakpointhook is sys.__breakpointhook__ and _variable() in _PLAIN:
        sys.breakpointhook = _hook


def _variable() -> str:
    return os.environ.get("PYTHONBREAKPOINT", "")


def _hook(*args: Any, **named: Any) -> Any:
    """``sys.breakpointhook`` of a replica."""
    if _variable() not in _PLAIN:  # the program has set it since
        return sys.__breakpointhook__(*args, **named)
    return _stop(*args, **named)


def _stop(*, header: str | None = None) -> None:
    """Stop in the frame that called ``breakpoint()`` or ``xmp.breakpoint()``."""
    from .debugger import Debugger  # pdb brings thirty modules

    debugger: Debugger | None = getattr(_mine, "debugger", None)
    if debugger is None or debugger.loan.owner != os.getpid():
        _mine.debugger = debugger = Debugger(Loan())
    debugger.begin(header)
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == _breakpoint.__file__:
        frame = frame.f_back
    debugger.set_trace(frame)


class Loan:
    """What the launcher reads from, in the hands of one thread of this replica."""

    def __init__(self) -> None:
        self.rank = _inside.rank()
        self.owner = os.getpid()
        self.terminal = False
        self.source = self.sink = -1
        """Where the debugger reads and where it writes."""
        self._channel: Any = _inside.channel()
        self._wire: Wire | None = None
        self._before = -1

    def take(self) -> bool:
        """Wait for the terminal; False if it is here already.

        Raises RuntimeError, with what to do, where the launcher has nothing to read from.
        """
        if self._wire is not None:
            return False
        if self._channel is None:
            raise RuntimeError(
                "breakpoint() works in a replica's function; here the script is still imported "
                "or the function loaded, for all replicas at once and without a terminal"
            )
        _flush()
        ours, theirs = pair()
        try:
            self._channel.tell("breakpoint", self.rank, descriptors=[theirs.fileno()])
            theirs.close()
            (answer, *rest), descriptors = ours.recv()
        except BaseException:
            ours.close()
            raise
        if answer == "refused":
            ours.close()
            raise RuntimeError(rest[0])
        self._wire, (self.terminal,) = ours, rest
        self.source, self.sink = descriptors
        self._before = os.dup(0)
        os.dup2(self.source, 0)  # for input() in the code that is stepped over
        return True

    def catch_up(self) -> None:
        """Wait until what this replica has written so far has passed the supervisor."""
        _flush()
        if self._wire is not None:
            try:
                self._wire.send(("sync",))
                self._wire.recv()
            except Closed:
                pass  # the supervisor has been killed, and we will be

    @property
    def editable(self) -> bool:
        """Whether standard output is this very terminal: then ``input()`` has readline."""
        if not self.terminal or not os.isatty(1):
            return False
        return os.fstat(1).st_rdev == os.fstat(self.source).st_rdev

    def give_back(self, last_word: str = "left") -> None:
        """Let the next one have it; ``last_word`` is "left", or "quit" to end the launch."""
        wire, self._wire = self._wire, None
        if wire is None:
            return
        _flush()
        os.dup2(self._before, 0)
        for descriptor in (self._before, self.source, self.sink):
            os.close(descriptor)
        try:
            # Not by closing alone: children that were forked meanwhile hold a copy.
            wire.send((last_word,))
        except Closed:
            pass
        wire.close()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
