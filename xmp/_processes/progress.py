"""The live view of a start: in which phase each replica is, until all are in the function.

Whoever waits for the launch draws it; there is no thread. On a terminal it is a few lines at the
bottom, elsewhere plain lines, one for each change that lasts.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xmp._types import ReplicaPlan

from .stacks import ranks
from .terminal import say

if TYPE_CHECKING:
    from .screen import Screen

__all__ = ["PHASES", "Progress", "said_here"]

PHASES = ("starting", "importing", "joining", "running", "done", "failed")
_PATIENCE = 2.0
"""Seconds that a start may take before anybody wants to see it."""
_REFRESH = 0.2
_LINES_APART = 1.0
_MOST_NAMES = 60


class Progress:
    """What is shown of one launch."""

    def __init__(self, plans: Sequence[ReplicaPlan], called: int, progress: bool | None) -> None:
        """``progress`` as the user gave it: True, None (if it takes long, on a terminal), False."""
        self._asked = bool(progress)
        self._next: float | None = None
        """When it wants to be looked after; None: there is nothing to be seen."""
        self._screen: Screen | None = None
        if not self._asked and (progress is False or _terminal() < 0):
            return
        now = time.monotonic()
        self._called = called / 1e9
        self._processes = {plan.rank: [plan.rank, *(m.rank for m in plan.mates)] for plan in plans}
        everybody = sorted(rank for several in self._processes.values() for rank in several)
        self._phases = dict.fromkeys(everybody, ("starting", now))
        self._notes: dict[int, str] = {}
        self._next = now if progress else self._called + _PATIENCE
        self._shown = False
        self._doing = ""
        self._counts: Counter[str] = Counter()
        """What the last line said."""
        self._drawing = threading.Lock()

    @property
    def possible(self) -> bool:
        """Whether anything may be shown."""
        return self._next is not None

    # --- what happens --------------------------------------------------------------------------

    def reached(self, first: int, phase: str, pid: int | None = None) -> None:
        """The replicas of a process, known by its first rank, are in this phase now."""
        if self._next is None:
            return
        now = time.monotonic()
        for rank in self._processes[first]:
            if pid is not None:
                self._notes[rank] = f"pid {pid}"
            before = self._phases[rank][0]
            if before not in (phase, "done", "failed"):
                self._phases[rank] = phase, now
        if self._settled():
            self._last_word()
            self.close()

    def _settled(self) -> bool:
        """Whether the start is over, one way or the other."""
        phases = {phase for phase, _ in self._phases.values()}
        return "failed" in phases or phases <= {"running", "done"}

    def _last_word(self) -> None:
        if self._screen is None and (self._shown or self._asked):
            self._say()

    # --- drawing -------------------------------------------------------------------------------

    def next(self) -> float | None:
        """Seconds until it wants to be looked after; None: never again."""
        return None if self._next is None else max(0.0, self._next - time.monotonic())

    def glance(self, doing: Callable[[], str]) -> None:
        """Draw, if it is time; ``doing`` says what a launch without replicas waits for."""
        if self._next is None or time.monotonic() < self._next:
            return
        if not self._drawing.acquire(timeout=_REFRESH):
            return  # another thread that waits is at it
        try:
            self._draw(doing)
        except OSError:
            self._next = self._screen = None  # the terminal is gone: nobody looks
        finally:
            self._drawing.release()

    def _draw(self, doing: Callable[[], str]) -> None:
        if self._next is None:
            return  # closed, while this thread waited for the other
        self._doing = "" if self._notes else doing()
        if self._doing:
            phase = "importing" if "import" in self._doing else "starting"
            for rank in self._processes:
                self.reached(rank, phase)
        if not self._shown and not self._begin():
            self._next = None
        elif self._screen is None:
            self._say()
            self._next = time.monotonic() + _LINES_APART
        else:
            self._screen.draw(self._board(self._screen))
            self._next = time.monotonic() + _REFRESH

    def _begin(self) -> bool:
        """Choose how to show it; False where nobody could see what nobody has asked for."""
        from .screen import Screen, suits  # whoever starts in two seconds does without

        descriptor = _terminal()
        if descriptor >= 0 and suits(descriptor):
            sys.stderr.flush()
            self._screen = Screen(descriptor)
        elif not self._asked:
            return False
        self._shown = True
        return True

    def _board(self, screen: Screen) -> list[str]:
        from .board import drawn

        now = time.monotonic()
        phases = {rank: (phase, now - since) for rank, (phase, since) in self._phases.items()}
        seen = phases if self._notes else {}
        return drawn(self._title(now), seen, self._notes, (screen.width, screen.room))

    def _title(self, now: float, named: bool = False) -> str:
        """How many there are in each phase; ``named``: also who, of those that are waited for."""
        there: dict[str, list[int]] = {}
        for rank, (phase, _) in self._phases.items():
            there.setdefault(phase, []).append(rank)
        parts = []
        for phase in PHASES:
            if phase in there:
                who = named and len(there) > 1 and phase not in ("running", "done")
                names = f" ({_cut(ranks(there[phase]))})" if who else ""
                parts.append(f"{len(there[phase])} {phase}{names}")
        waits = f" ({self._doing})" if self._doing and not self._notes else ""
        return f"xmp: {now - self._called:.1f} s: {', '.join(parts)}{waits}"

    def _say(self) -> None:
        """A plain line, if it would be another than the one before."""
        counts = Counter(phase for phase, _ in self._phases.values())
        if counts != self._counts:
            self._counts, self._shown = counts, True
            say(self._title(time.monotonic(), named=True))

    def asked(self, name: str) -> None:
        """The launcher asks its supervisor for something: an end needs no view of the start."""
        if name == "pause":
            self.hide()  # who gets the terminal now gets it as it was
        elif name in ("interrupt", "stop", "kill"):
            self.close()

    def drop(self) -> None:
        """In a forked child of the launcher: it is not ours to show."""
        self._next = self._screen = None

    def hide(self) -> None:
        """Leave the terminal to others for now."""
        if self._screen is not None:
            self._screen.clear()

    def close(self) -> None:
        """Show nothing any more."""
        if self._next is None:
            return
        self._next = None
        mine = self._drawing.acquire(timeout=_LINES_APART)
        self.hide()
        self._screen = None
        if mine:
            self._drawing.release()


def _cut(words: str) -> str:
    return words if len(words) <= _MOST_NAMES else f"{words[:_MOST_NAMES]}…"


def said_here(called: int) -> Callable[..., None]:
    """For a replica that is this process: a line when it joins, one when it runs."""

    def tell(name: str, *_: object) -> None:
        if name in ("joining", "running"):
            say(f"xmp: {time.monotonic() - called / 1e9:.1f} s: 1 {name}")

    return tell


def _terminal() -> int:
    """The descriptor of standard error where that is a terminal, else -1.

    A notebook's stream has the descriptor of the terminal that the server was started from, and
    says that it is none.
    """
    try:
        return sys.stderr.fileno() if sys.stderr.isatty() else -1
    except (AttributeError, OSError, ValueError):
        return -1  # there is none, or it is closed
