"""The progress of a start: how many replicas are in which phase, until all run the function.

The thread that waits for the launch shows it. On a terminal and in a notebook it is one line that
is redrawn; elsewhere it is plain lines, one for each change that lasts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from xmp._os.log import say
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import Interrupt, Kill, Pause, Stop
from xmp._processes.messages.order import PHASES
from xmp._processes.messages.thread_replicas import spread
from xmp._processes.report.stack_texts import ranks
from xmp._words.types import ReplicaPlan

from . import status_line
from .console import in_notebook
from .status_line import CellLine

__all__ = ["Progress", "said_here"]

_PATIENCE = 2.0
"""Seconds that a start may take before its progress is shown without ``progress=True``."""
_REFRESH = 0.2
_LINES_APART = 1.0
_MOST_NAMES = 60


class _Line(Protocol):
    """A line that is redrawn, if the output can show one."""

    def possible(self) -> bool: ...
    def draw(self, text: str) -> bool: ...
    def erase(self) -> None: ...
    def finish(self, text: str) -> None: ...


class Progress:
    """The display of the start of one launch."""

    def __init__(self, plans: Sequence[ReplicaPlan], called: int, progress: bool | None) -> None:
        """Show the start of these replicas. ``called`` is in monotonic nanoseconds.

        ``progress`` is as the user gave it. None: show it only if the start takes long and a line
        can be redrawn.
        """
        self._asked = bool(progress)
        self._next: float | None = None
        """When to show the progress again; None: never."""
        self._line: _Line = CellLine() if in_notebook() else status_line
        if not self._asked and (progress is False or not self._line.possible()):
            return
        self._called = called / 1e9
        self._processes = {plan.rank: [*spread(plan, None)] for plan in plans}
        known = sorted(rank for together in self._processes.values() for rank in together)
        self._phases = dict.fromkeys(known, PHASES[0])
        self._next = time.monotonic() if progress else self._called + _PATIENCE
        self._forked = False
        self._said = ""
        self._showing = threading.RLock()  # a signal handler may call close() during a drawing

    @property
    def possible(self) -> bool:
        """Whether anything may be shown."""
        return self._next is not None

    # --- what happens --------------------------------------------------------------------------

    def reached(self, first: int, phase: str) -> None:
        """Note that the replicas of a process, named by its first rank, are in this phase now."""
        if self._next is None:
            return
        self._forked = True
        for rank in self._processes[first]:
            if self._phases[rank] not in ("done", "failed"):
                self._phases[rank] = phase
        there = set(self._phases.values())
        if "failed" in there or there <= {"running", "done"}:
            if self._asked and not self._line.possible():
                self._say()
            self.close()

    def asked(self, message: Message) -> None:
        """Hide the progress upon a Pause, and close it upon a message that ends the launch.

        ``message`` is one that the launcher sends to the supervisor.
        """
        if isinstance(message, Pause):
            self.hide()  # the shell gets the terminal
        elif isinstance(message, (Interrupt, Stop, Kill)):
            self.close()

    def drop(self) -> None:
        """Show nothing any more, in a forked child of the launcher."""
        self._next = None

    def hide(self) -> None:
        """Leave the terminal to others for now."""
        if self._next is not None:
            with self._showing:
                self._line.erase()

    def close(self) -> None:
        """Draw the last line, and show nothing any more."""
        if self._next is not None:
            with self._showing:
                self._next = None
                self._line.finish(f"{self._elapsed()}{self._summary()}")

    # --- showing it ----------------------------------------------------------------------------

    def next(self) -> float | None:
        """Return the seconds until ``glance`` has something to do; None: never."""
        return None if self._next is None else max(0.0, self._next - time.monotonic())

    def glance(self, doing: Callable[[], str]) -> None:
        """Show the progress if it is time; ``doing`` says what a launch without replicas awaits."""
        if self._next is None or time.monotonic() < self._next:
            return
        with self._showing:
            if self._next is not None:  # else another thread has closed it
                self._show("" if self._forked else doing())

    def _show(self, awaited: str) -> None:
        if awaited:
            phase = "importing" if "import" in awaited else PHASES[0]
            self._phases = dict.fromkeys(self._phases, phase)
        waits = f" ({awaited})" if awaited else ""
        try:
            drawn = self._line.draw(f"{self._elapsed()}{self._summary()}{waits}")
        except OSError:
            self._next = None  # the terminal is gone
            return
        self._next = time.monotonic() + (_REFRESH if drawn else _LINES_APART)
        if self._asked and not drawn:
            self._say(waits)

    def _say(self, waits: str = "") -> None:
        """Write a plain line if it differs from the one before."""
        summary = self._summary()
        if summary != self._said:
            self._said = summary
            say(f"{self._elapsed()}{summary}{waits}")

    def _elapsed(self) -> str:
        return f"xmp: {time.monotonic() - self._called:.1f} s: "

    def _summary(self) -> str:
        """Return how many replicas are in each phase, with the ranks that others wait for."""
        there: dict[str, list[int]] = {}
        for rank, phase in self._phases.items():
            there.setdefault(phase, []).append(rank)
        parts = []
        for phase in PHASES:
            if phase in there:
                named = len(there) > 1 and phase not in ("running", "done")
                names = f" ({_cut(ranks(there[phase]))})" if named else ""
                parts.append(f"{len(there[phase])} {phase}{names}")
        return ", ".join(parts)


def _cut(words: str) -> str:
    return words if len(words) <= _MOST_NAMES else f"{words[:_MOST_NAMES]}…"


def said_here(called: int) -> Callable[..., None]:
    """Return a function for a replica that is this process: it prints when that joins and runs."""

    def report(name: str, *_: object) -> None:
        if name in ("joining", "running"):
            say(f"xmp: {time.monotonic() - called / 1e9:.1f} s: 1 {name}")

    return report
