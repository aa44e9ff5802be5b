"""Modules that the next launch would like to find imported: tried one after the other while idle.

A template that imports a module which starts a thread, opens a device or hangs cannot be forked
any more. So a throw-away fork imports it first (``trial_import``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from xmp._words.types import ForkRules

from .trial_import import ImportTrial

__all__ = ["Candidates"]


class Candidates:
    """The queue of modules to try, and the trial that runs."""

    def __init__(self) -> None:
        self.trial: ImportTrial | None = None
        self._names: list[str] = []
        self._rules = ForkRules()
        self._harmless: list[str] = []

    @property
    def waiting(self) -> bool:
        """Whether a trial should begin."""
        return bool(self._names) and self.trial is None

    def add(self, names: Iterable[str], rules: ForkRules) -> None:
        """Queue modules; ``rules`` name what makes a process unsafe to fork."""
        self._names += [name for name in names if name not in sys.modules]
        self._rules = rules

    def begin_trial(self, fork: Callable[[], int]) -> ImportTrial:
        """Fork the trial of all queued modules, by the server's ``fork``."""
        names, self._names = self._names, []
        self.trial = ImportTrial(names, self._rules, fork)
        return self.trial

    def trial_ended(self) -> None:
        """Keep what it found harmless, refuse the module at which it ended, queue the rest."""
        assert self.trial is not None
        harmless, rest = self.trial.close()
        self.trial = None
        self._harmless += harmless
        self._names = [name for name in (*rest, *self._names) if name not in sys.modules]

    def take_harmless(self) -> list[str]:
        """The modules that trials found harmless since the last call."""
        harmless, self._harmless = self._harmless, []
        return harmless
