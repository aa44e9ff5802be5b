"""The launcher's terminal, or what else it reads from, lent to a replica that debugs.

Only while the launcher waits for the launch: nobody else reads it then. The launcher's group stays
the terminal's foreground group, so that Ctrl-Z and ``fg`` mean the whole job; Ctrl-C comes to the
launcher, too, which passes it on to the debugger.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .family import is_stopped
from .patience import Patience
from .terminal import in_notebook, say

__all__ = ["Lender"]

_NOTEBOOK = (
    "breakpoint() in a notebook needs nprocs=1: that runs the function in the notebook's own "
    "process; other replicas would need a terminal"
)
_NOTHING = (
    "breakpoint() has nobody to talk to: the launcher has no terminal, and its standard input is "
    "closed or /dev/null; start it in a terminal, or pass over all breakpoints with "
    "PYTHONBREAKPOINT=0"
)
_BEHIND = (
    "breakpoint() needs the terminal, and the launcher is not in the terminal's foreground: start "
    "it there, or pass over all breakpoints with PYTHONBREAKPOINT=0"
)
_WHY = "debugger"
_TRIES = 10
_BREATH = 0.05
_LOOK = 1.0
_GLANCE = 0.001

Modes = list[Any]


@dataclass
class _Terminal:
    """A terminal while it is lent."""

    descriptor: int
    before: Modes | None
    at_prompt: Modes | None = None

    def in_front(self) -> bool:
        """Whether we may use it: what is not our controlling terminal is open to everybody."""
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:
            return True

    def come_to_front(self) -> bool:
        """Stop, as a background job that reads, until the user's shell puts us in front."""
        for _ in range(_TRIES):
            if self.in_front():
                break
            os.killpg(0, signal.SIGTTIN)
            time.sleep(_BREATH)  # an orphaned group is not stopped: nobody could continue it
        return self.in_front()

    def suspend(self) -> None:
        """Before we stop: the modes that the shell knows."""
        if self.in_front():
            self.at_prompt = _modes(self.descriptor)
            _set_modes(self.descriptor, self.before)

    def resume(self) -> None:
        """We go on, and so does the debugger's line editor."""
        if self.come_to_front() and self.at_prompt is not None:
            _set_modes(self.descriptor, self.at_prompt)
        self.at_prompt = None

    def close(self) -> None:
        """As it was."""
        if self.in_front():
            _set_modes(self.descriptor, self.before)
        os.close(self.descriptor)


def _nobody(*_: Any, **__: Any) -> None:
    pass


def _modes(descriptor: int) -> Modes | None:
    try:
        return termios.tcgetattr(descriptor)
    except termios.error:
        return None  # hung up


def _set_modes(descriptor: int, modes: Modes | None) -> None:
    try:
        if modes is not None:
            termios.tcsetattr(descriptor, termios.TCSANOW, modes)
    except termios.error:
        pass


class Lender:
    """Of one launch; at most one of a process lends at a time."""

    _busy: Lender | None = None

    def __init__(self, ask: Callable[..., None], patience: Patience) -> None:
        self._ask = ask
        self._patience = patience
        self._wanted: int | None = None
        self._pid = 0
        self._lent = False
        self._terminal: _Terminal | None = None
        self._end = ""

    # --- what the supervisor tells -------------------------------------------------------------

    def told(self, name: str, value: Any) -> None:
        """A replica, by rank and pid, is at a "breakpoint"; or it has "left" it, and why the
        launch shall be interrupted, if it shall."""
        if name == "breakpoint":
            self._patience.pause(_WHY)
            self._wanted, self._pid = value
        else:
            self.close()
            self._end = value

    def close(self) -> None:
        """Nobody debugs any more: everything is as it was."""
        self._patience.resume(_WHY)
        self._wanted, self._lent = None, False
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            terminal.close()
        if Lender._busy is self:
            Lender._busy = None

    def end(self) -> None:
        """The launch is over; let go of who asks, who holds us."""
        self.close()
        self._ask = _nobody

    # --- while the launcher waits --------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether ``settle`` has something to do."""
        return bool(self._end) or (self._wanted is not None and Lender._busy is None)

    @property
    def look(self) -> float | None:
        """Seconds until ``pending`` may be true without news; None where nobody debugs.

        Another launch may have the terminal.
        """
        return _LOOK if self._lent or self._wanted is not None else None

    def settle(self) -> bool:
        """Lend what is asked for, if ``pending``; KeyboardInterrupt if a debugger was quit."""
        if self._end:
            why, self._end = self._end, ""
            raise KeyboardInterrupt(why)
        if not self.pending:
            return False
        rank, self._wanted = self._wanted, None
        found = self._find()
        if isinstance(found, str):
            self._ask("debugging", "refused", rank, found)
        else:
            self._lend(rank, found)
        return True

    def _lend(self, rank: int | None, found: tuple[int, int]) -> None:
        Lender._busy, self._lent = self, True
        try:
            is_terminal = self._terminal is not None
            self._ask("debugging", "lent", rank, is_terminal, descriptors=found)
        finally:
            for descriptor in found:
                os.close(descriptor)

    def by_signal(self, name: str) -> None:
        """The user's Ctrl-C ("interrupt"), or Ctrl-Z ("pause") and what continues us ("resume")."""
        if name == "interrupt":
            if self._terminal is None:
                raise KeyboardInterrupt
            self._ask("debugging", "interrupt")
        elif name == "pause":
            self._ask(name)
            if self._terminal is not None:
                self._stop_reading()
                self._terminal.suspend()
        else:
            if self._terminal is not None:
                self._terminal.resume()
            self._ask(name)

    def _stop_reading(self) -> None:
        """The supervisor stops it too, but later: what is typed now is for the shell."""
        end = time.monotonic() + _LOOK
        try:
            os.kill(self._pid, signal.SIGSTOP)
        except ProcessLookupError:
            return
        while not is_stopped(self._pid) and time.monotonic() < end:
            time.sleep(_GLANCE)

    # --- what there is to lend -----------------------------------------------------------------

    def _find(self) -> tuple[int, int] | str:
        """(what to read from, where to write); or why there is nothing."""
        if in_notebook():
            return _NOTEBOOK
        reads = _reads_something()
        if reads and not os.isatty(0):
            return os.dup(0), os.dup(1 if _is_open(1) else 2)
        descriptor = _open_terminal(reads)
        if descriptor is None:
            return _NOTHING
        terminal = _Terminal(descriptor, _modes(descriptor))
        if not terminal.in_front() and reads:
            say("xmp: a replica is at a breakpoint and needs the terminal: fg brings us there")
        if not (terminal.come_to_front() if reads else terminal.in_front()):
            os.close(descriptor)
            return _BEHIND
        terminal.before = _modes(descriptor)
        self._terminal = terminal
        return os.dup(descriptor), os.dup(descriptor)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _reads_something() -> bool:
    """Whether standard input is open, not /dev/null, and not a pipe that has ended."""
    if not _is_open(0):
        return False
    about = os.fstat(0)
    if stat.S_ISCHR(about.st_mode) and about.st_rdev == os.stat(os.devnull).st_rdev:
        return False
    poller = select.poll()
    poller.register(0, select.POLLIN)
    return all(what & select.POLLIN or not what & select.POLLHUP for _, what in poller.poll(0))


def _open_terminal(standard_input: bool) -> int | None:
    """A descriptor that reads and writes: standard input's terminal, or the controlling one."""
    if standard_input and fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
        return os.dup(0)
    try:
        path = os.ttyname(0) if standard_input else "/dev/tty"
        return os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
