"""What a fork server has imported, and what its imports could see: as far as it has reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from xmp._processes.messages.fork_server import ModulesImported, Ready
from xmp._processes.system.variables_read import ALL

__all__ = ["Imported"]

_PASSING = frozenset({"COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "_", "PYTEST_CURRENT_TEST"})
"""What shells and pytest change all the time; an import takes from it what holds for the moment."""


@dataclass
class Imported:
    """Grows with each report."""

    slowest: list[tuple[str, float]] = field(default_factory=list)
    """The slowest imports at the start: module and seconds."""
    packages: dict[str, str] = field(default_factory=dict)
    """Name and file of the top-level packages."""
    environments: list[dict[str, str]] = field(default_factory=list)
    """The environment at the start and after each import: some modules change it."""
    variables_read: set[str] | None = None
    """The variables that Python code asked for; None while the first imports run."""
    read_by_script: dict[str, str] = field(default_factory=dict)
    """Of these, what the program's own modules asked for, each with the module's file."""

    def add(self, report: Ready | ModulesImported) -> None:
        """Take in a report."""
        self.packages.update((n, file) for n, file in report.modules.items() if "." not in n)
        self.variables_read = (self.variables_read or set()) | set(report.variables_read)
        if isinstance(report, Ready):
            self.read_by_script = report.read_by_script
        if report.environment:
            self.environments.append(report.environment)

    def first_changed(self, wanted: Mapping[str, str], names: Iterable[str]) -> str:
        """Return the first of these variables that never had the wanted value here; empty if none.

        A variable counts as equal when it has its value from before or after one of the imports.
        """
        changed = (n for n in names if all(wanted.get(n) != e.get(n) for e in self.environments))
        return min(changed, default="")

    def changed_since(self, wanted: Mapping[str, str]) -> set[str]:
        """Return the names of the variables that had another value at the start, or none."""
        began = self.environments[0] if self.environments else wanted
        if began == wanted:
            return set()
        return {name for name, _ in began.items() ^ wanted.items()} - _PASSING

    def may_have_read(self, name: str) -> bool:
        """Return whether an import may depend on this variable, as far as Python code read it."""
        read = self.variables_read
        return read is None or name in read or ALL in read

    def reader_of(self, name: str) -> str:
        """Return the program's file whose import has read this variable; empty for no such file.

        A script is not imported again for what a library has read.
        """
        if self.variables_read is None:
            return "an import that has not ended"
        return self.read_by_script.get(name) or self.read_by_script.get(ALL, "")
