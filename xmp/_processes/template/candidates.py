"""Modules that later launches will need: tried one after the other while the template is idle.

A template that imports a module which starts a thread, opens a device or hangs can no longer be
forked. So a throw-away fork imports the module first (``trial_import``).
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
        """Queue modules; ``rules`` name the things that make a process unsafe to fork."""
        self._names += [name for name in names if name not in sys.modules]
        self._rules = rules

    def begin_trial(self, fork: Callable[[], int]) -> ImportTrial:
        """Begin a trial of all queued modules, forked by the server's ``fork``."""
        names, self._names = self._names, []
        self.trial = ImportTrial(names, self._rules, fork)
        return self.trial

    def trial_ended(self) -> None:
        """Keep the harmless modules, refuse the one at which the trial ended, queue the rest."""
        assert self.trial is not None
        harmless, rest = self.trial.close()
        self.trial = None
        self._harmless += harmless
        self._names = [name for name in (*rest, *self._names) if name not in sys.modules]

    def take_harmless(self) -> list[str]:
        """Return the modules that trials have found harmless since the last call."""
        harmless, self._harmless = self._harmless, []
        return harmless
