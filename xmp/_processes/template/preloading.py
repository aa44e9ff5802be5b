"""Modules that later launches will need: tried one after the other while the template is idle.

A template that imports a module which starts a thread, opens a device or hangs can no longer be
forked. So a throw-away fork imports the modules first, and finds the harmless ones. With it, a
function that imports scikit-learn itself begins as fast as one that uses nothing: a warm spawn of
four takes 96 ms, without trials 1,888 ms (two cores, 2026-11-22).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from xmp._processes.system import fork_safety, linux
from xmp._words.types import ForkRules

__all__ = ["Candidates", "silence"]

_SECONDS = 20.0
"""Seconds for one module. An import that takes longer hangs, or is too slow to wait for."""


class ImportTrial:
    """The server's handle on the fork; ``pipe`` is readable when the fork is done with a module."""

    def __init__(self, names: Sequence[str], rules: ForkRules, fork: Callable[[], int]) -> None:
        """Fork the trial; the server's ``fork`` closes the server's descriptors in the child."""
        self._names = names
        self.pipe, said = os.pipe()
        try:
            self.pid = fork()
        except OSError:
            os.close(self.pipe)
            os.close(said)
            raise
        if self.pid == 0:
            silence()
            _try(names, rules, said)
        os.close(said)
        os.set_blocking(self.pipe, False)
        self._harmless = 0
        self._ends = time.monotonic() + _SECONDS

    @property
    def left(self) -> float:
        """The seconds that the import of the present module may still take."""
        return max(0.0, self._ends - time.monotonic())

    def hear(self) -> bool:
        """Read what the fork has written. Return False at the end of the pipe."""
        try:
            data = os.read(self.pipe, 65536)
        except BlockingIOError:
            return True
        self._harmless += len(data)
        self._ends = time.monotonic() + _SECONDS
        return bool(data)

    def close(self) -> tuple[list[str], list[str]]:
        """Close an ended trial. Return the harmless modules, and those after the refused one."""
        self.hear()
        os.close(self.pipe)
        count = self._harmless
        return list(self._names[:count]), list(self._names[count + 1 :])


def silence() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _try(names: Sequence[str], rules: ForkRules, said: int) -> None:
    """Import the modules, write a byte for each that left nothing behind, and exit."""
    sockets = fork_safety.connected_sockets()
    linux.continue_on_hang_up(said, os.getpid())  # the next write fails then
    try:
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
            if fork_safety.culprits(rules, sockets):
                break
            os.write(said, b".")  # not the module's name, which may contain any character
    finally:
        os._exit(0)


class Candidates:
    """The queue of modules to try, and the trial that runs."""

    def __init__(self) -> None:
        self.trial: ImportTrial | None = None
        self._names: list[str] = []
        self._rules = ForkRules()
        self._harmless: list[str] = []

    @property
    def waiting(self) -> bool:
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
