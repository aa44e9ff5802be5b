"""Lends the launcher's terminal, or its other standard input, to a replica that debugs.

It is lent only while the launcher waits for the launch and reads nothing itself, and to one replica
at a time: while one launch lends it, another launch of the process is refused. The launcher's
group stays the terminal's foreground group, so that Ctrl-Z and ``fg`` apply to the whole job;
Ctrl-C comes to the launcher, which passes it on to the debugger.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from xmp._os.log import say
from xmp._processes.messages import launch
from xmp._processes.system.descriptors import close_all
from xmp._processes.system.processes import is_stopped

from .console import in_notebook

__all__ = ["TerminalLender"]

_NOTEBOOK = (
    "breakpoint() in a notebook needs nprocs=1: that runs the function in the notebook's own "
    "process; other replicas would need a terminal"
)
_NOTHING = (
    "breakpoint() needs a terminal or a pipe to read from: the launcher has no terminal, and its "
    "standard input is closed, /dev/null or a pipe that has ended; start it in a terminal, or pass "
    "over all breakpoints with PYTHONBREAKPOINT=0"
)
_BEHIND = (
    "breakpoint() needs the terminal, and the launcher is not in the terminal's foreground: start "
    "it there, or pass over all breakpoints with PYTHONBREAKPOINT=0"
)
_LENT = (
    "breakpoint() needs the terminal, and a replica of another launch of this program has it: join "
    "one launch after the other, or pass over all breakpoints with PYTHONBREAKPOINT=0"
)
_FETCH = "xmp: a replica is at a breakpoint: bring this job to the terminal's foreground (fg)"
_WHY = "debugger"
_HOSTS = (
    "breakpoint() needs a terminal, and the replicas of a launch with hosts= have none: debug the "
    "function on one host with xmp.spawn, or pass over all breakpoints with PYTHONBREAKPOINT=0"
)
_LOOK = 1.0
_GLANCE = 0.001


class _Terminal:
    """A terminal while it is lent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = self._modes()
        self._at_prompt: list[Any] | None = None

    def _modes(self) -> list[Any] | None:
        with suppress(termios.error):  # hung up
            return termios.tcgetattr(self._descriptor)
        return None

    def _set(self, modes: list[Any] | None) -> None:
        with suppress(termios.error):
            if modes is not None:
                termios.tcsetattr(self._descriptor, termios.TCSANOW, modes)

    def suspend(self) -> None:
        """Restore the modes that the shell knows, before this process stops."""
        if _in_front(self._descriptor):
            self._at_prompt = self._modes()
            self._set(self._before)

    def resume(self) -> None:
        """Set the modes of the debugger's line editor; in the background this stops the process.

        The kernel stops a background job that sets the modes of its terminal (tcsetattr), and sets
        them when the job is in the foreground.
        """
        self._set(self._at_prompt)
        self._at_prompt = None

    def close(self) -> None:
        """Restore the modes from before, and close the descriptor."""
        if _in_front(self._descriptor):
            self._set(self._before)
        os.close(self._descriptor)


class TerminalLender:
    """The lender of one launch."""

    _busy: TerminalLender | None = None
    """The one that lends now: at most one of a process does."""

    def __init__(
        self,
        ask: Callable[..., None],
        pause: Callable[[str], None],
        resume: Callable[[str], None],
        for_driver: bool = False,
    ) -> None:
        """Lend nothing yet.

        ``ask`` sends a message to the supervisor; ``pause`` and ``resume`` stop the launcher's
        deadlines and let them run again. ``for_driver``: the user's terminal belongs to another
        process, and cannot be lent.
        """
        self._ask, self._pause, self._resume = ask, pause, resume
        self._for_driver = for_driver
        self._wanted: int | None = None
        """The rank that waits for the terminal."""
        self._pid = 0
        self._terminal: _Terminal | None = None
        self._end = ""

    # --- messages of the supervisor ------------------------------------------------------------

    def at_breakpoint(self, message: launch.AtBreakpoint) -> None:
        """Note that a replica asks for the terminal, and stop the deadlines."""
        self._pause(_WHY)
        self._wanted, self._pid = message

    def left(self, message: launch.DebuggerLeft) -> None:
        """Take the terminal back: the debugger continues, or was quit, which ends the launch."""
        self.close()
        self._end = message.why

    def close(self) -> None:
        """Take the terminal back and restore its modes; the deadlines run again."""
        self._resume(_WHY)
        self._wanted = None
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            terminal.close()
        if self._lends:
            TerminalLender._busy = None

    def end(self) -> None:
        """Close at the end of the launch; forget ``ask``, whose owner refers to this object."""
        self.close()
        self._ask = lambda *_: None

    # --- while the launcher waits --------------------------------------------------------------

    @property
    def _lends(self) -> bool:
        return TerminalLender._busy is self

    @property
    def pending(self) -> bool:
        """Whether ``settle`` has something to do."""
        return bool(self._end) or self._wanted is not None

    @property
    def look(self) -> float | None:
        """The longest wait while a replica debugs, when no time limit counts; None if none does."""
        return _LOOK if self._lends or self._wanted is not None else None

    def settle(self) -> bool:
        """Lend the terminal, or refuse, if a replica asks. Return whether a request was answered.

        Raises KeyboardInterrupt if a debugger was quit.
        """
        if self._end:
            why, self._end = self._end, ""
            raise KeyboardInterrupt(why)
        rank, self._wanted = self._wanted, None
        if rank is None:
            return False
        found = self._find()
        if isinstance(found, str):
            self._ask(launch.AnswerDebugger(rank, found))
            return True
        TerminalLender._busy = self
        try:
            self._ask(launch.AnswerDebugger(rank), found)
        finally:
            close_all(found)
        return True

    def by_signal(self, message: launch.Interrupt | launch.Pause | launch.Resume) -> None:
        """Handle the user's Ctrl-C, Ctrl-Z, and the continuation of this process after it.

        Raises KeyboardInterrupt for a Ctrl-C while no terminal is lent.
        """
        if isinstance(message, launch.Interrupt):
            if self._terminal is None:
                raise KeyboardInterrupt
            self._ask(launch.InterruptDebugger())
        elif isinstance(message, launch.Pause):
            self._ask(message)
            if self._terminal is not None:
                end = time.monotonic() + _LOOK
                # The shell reads from now on, and the replica must not.
                while not is_stopped(self._pid) and time.monotonic() < end:
                    time.sleep(_GLANCE)
                self._terminal.suspend()
        else:
            if self._terminal is not None:
                self._terminal.resume()
            self._ask(message)

    # --- what there is to lend -----------------------------------------------------------------

    def _find(self) -> tuple[int, int] | str:
        """Return descriptors (to read from, to write to), or why there is nothing to lend."""
        if self._for_driver:
            return _HOSTS
        if in_notebook():
            return _NOTEBOOK
        if TerminalLender._busy is not None:
            return _LENT
        reads = _reads_something()
        if reads and not os.isatty(0):
            return os.dup(0), _writable()
        descriptor = _open_terminal(reads)
        if descriptor is None:
            return _NOTHING
        if reads and not _in_front(descriptor):
            say(_FETCH)
            _come_to_front(descriptor)
        if not _in_front(descriptor):
            os.close(descriptor)
            return _BEHIND
        self._terminal = _Terminal(descriptor)
        return os.dup(descriptor), os.dup(descriptor)


def _reads_something() -> bool:
    """Return whether standard input is open, not /dev/null, and not a pipe that has ended."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    state = sum(what for _, what in poller.poll(0))
    if state & select.POLLNVAL or (state & select.POLLHUP and not state & select.POLLIN):
        return False
    return os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev


def _writable() -> int:
    try:
        return os.dup(1)
    except OSError:
        return os.dup(2)


def _open_terminal(standard_input: bool) -> int | None:
    """Open, to read and write, standard input's terminal or the controlling one; None without."""
    if standard_input and fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
        return os.dup(0)
    try:
        path = os.ttyname(0) if standard_input else "/dev/tty"
        return os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def _in_front(descriptor: int) -> bool:
    """Return whether this process may use a terminal: a non-controlling one is open to all."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True


def _come_to_front(descriptor: int) -> None:
    """Stop until the user's shell puts this job in the foreground.

    The kernel does that with a background job that calls tcdrain (SIGTTOU). In an orphaned group,
    which no shell could continue, the call fails.
    """
    with suppress(termios.error):
        termios.tcdrain(descriptor)
