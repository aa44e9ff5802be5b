"""Measures cases: systems take turns round by round, so that drift hits all alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from cases import Case
from driver import Failed, Measured, run_script
from figures import Figures

Progress = Callable[[str, str, int], None]
"""Called with (case, system, round) before each."""
WARM_UP = 2
COLD = ("torch", "multiprocessing", "xmp-spawn")
"""Every replica is a fresh interpreter: there is nothing that could be warm."""


class Runner:
    """All rounds of some cases, on the processors given.

    ``pythons`` are the interpreters of systems that do not live in this one.
    """

    def __init__(
        self,
        figures: Figures,
        cpus: Sequence[int],
        rounds: int,
        progress: Progress,
        pythons: Mapping[str, str] | None = None,
    ) -> None:
        self._figures = figures
        self._cpus = cpus
        self._rounds = rounds
        self._progress = progress
        self._pythons = pythons or {}

    def measure(self, case: Case, systems: Iterable[str]) -> None:
        """Every round of ``case`` under those of its ``systems``."""
        with ExitStack() as stack:
            turns = {
                system: self._turn_of(case, system, stack)
                for system in systems
                if case.how != "warm" or self._try(case, system, self._start, case, system, stack)
            }
            for number in range(rounds_of(case, self._rounds)):
                for system, turn in turns.items():
                    self._progress(case.name, system, number)
                    self._try(case, system, turn)

    def _start(self, case: Case, system: str, stack: ExitStack) -> None:
        """Bring a system up, and to rest after its first spawns."""
        self._progress(case.name, system, -1)
        measured = Measured(case.script, system, self._cpus, self._python_of(system))
        stack.callback(measured.close)
        if system not in COLD:
            for _ in range(WARM_UP):
                measured.round(min(case.counts[-1], 8))
                measured.settle()
        self._warm = measured

    def _python_of(self, system: str) -> str:
        return self._pythons.get(system, sys.executable)

    def _turn_of(self, case: Case, system: str, stack: ExitStack) -> Callable[[], None]:
        if case.how == "script":
            return lambda: self._script(case, system)
        if case.how == "cold":
            return lambda: self._cold(case, system)
        if case.how == "twice":
            return lambda: self._twice(case, system)
        measured = self._warm
        return lambda: self._rounds_of(case, system, measured)

    def _rounds_of(self, case: Case, system: str, measured: Measured) -> None:
        for count in case.counts:
            found = measured.round(count, case.probe)
            if len(case.counts) > 1:
                seconds = found["seconds"]
                found = {f"seconds@{count}": seconds, f"each@{count}": seconds / count}
            self._figures.add(case.name, system, found)

    def _cold(self, case: Case, system: str) -> None:
        measured = Measured(case.script, system, self._cpus)
        try:
            self._figures.add(case.name, system, measured.round(case.counts[0], case.probe))
        finally:
            measured.close()

    def _twice(self, case: Case, system: str) -> None:
        measured, found = Measured(case.script, system, self._cpus), {}
        try:
            for which in ("first", "second"):
                measured.settle(case.beats)
                once = measured.round(case.counts[0], case.probe)
                found.update({f"{name}@{which}": value for name, value in once.items()})
        finally:
            measured.close()
        self._figures.add(case.name, system, found)

    def _script(self, case: Case, system: str) -> None:
        arguments = [system, str(case.counts[0])]
        found = run_script(case.script, arguments, self._cpus)
        self._figures.add(case.name, system, found)

    def _try(self, case: Case, system: str, action: Callable[..., None], *given: object) -> bool:
        if (case.name, system) in self._figures.failed:
            return False
        try:
            action(*given)
        except (Failed, ValueError, KeyError) as error:
            self._figures.failed[case.name, system] = f"{type(error).__name__}: {error}"
            return False
        return True


def rounds_of(case: Case, rounds: int) -> int:
    return 1 if case.once else rounds
