"""The messages between a launcher and a fork server (template, script holder, keeper)."""

from __future__ import annotations

from typing import NamedTuple

from xmp._payload.script import MainSource
from xmp._words.types import ForkRules

from .launcher_state import LauncherState

__all__ = [
    "ForkFailed", "ForkRequest", "ForkSupervisor", "ForkUnsafe", "Forked", "ImportFailed",
    "ImportModules", "ModulesImported", "ProcessEnded", "Ready", "StartScriptHolder",
    "StartTemplate", "TryModules",
]  # fmt: skip


class StartTemplate(NamedTuple):
    """The first message to a fresh template or keeper."""

    path: list[str]
    """``sys.path`` without the script's folder."""
    modules: list[str]
    idle: float | None
    """Seconds without a launch after which the process ends; None: never."""
    title: str
    """The name of the process."""


class ForkSupervisor(NamedTuple):
    """Fork a supervisor. Descriptors: its connection and its lifeline."""

    token: int


class StartScriptHolder(NamedTuple):
    """Fork a process that imports the script. Descriptors: connection, lifeline, streams 0 to 2."""

    token: int
    source: MainSource
    state: LauncherState
    rules: ForkRules


ForkRequest = ForkSupervisor | StartScriptHolder
"""The requests that ``Forked`` answers."""


class ImportModules(NamedTuple):
    """Import these modules now; ``ModulesImported`` answers."""

    names: list[str]
    written: dict[str, str]
    """Variables that earlier imports in the launcher have written into its environment."""


class TryModules(NamedTuple):
    """Try to import these modules while idle, and import those that a trial finds harmless.

    ``ModulesImported`` names the imported ones.
    """

    names: list[str]
    rules: ForkRules


class Ready(NamedTuple):
    """The first report: the requested modules have been imported, or the script."""

    pid: int
    modules: dict[str, str]
    """Name and file of each; empty in a script holder's report."""
    environment: dict[str, str]
    """The environment after the imports, some of which change it."""
    slowest: list[tuple[str, float]]
    """Module and seconds."""
    failed: dict[str, str]
    """Module and why it could not be imported."""
    variables_read: list[str]
    """The names of the environment variables that Python code has read during the imports."""
    read_by_script: dict[str, str]
    """The variables that the program's own modules have read, each with the module's file."""


class ModulesImported(NamedTuple):
    """Further modules have been imported; the fields are as in ``Ready``."""

    modules: dict[str, str]
    environment: dict[str, str]
    variables_read: list[str]


class Forked(NamedTuple):
    """The process that was forked for a request."""

    pid: int
    token: int


class ForkFailed(NamedTuple):
    """The request could not be met; ``why`` may name the limit that was reached."""

    token: int
    why: str


class ProcessEnded(NamedTuple):
    """The process has ended with this wait status, and its descendants have ended too."""

    pid: int
    status: int


class ForkUnsafe(NamedTuple):
    """A fork is not safe after the script's import; the script holder ends."""

    culprits: list[str]


class ImportFailed(NamedTuple):
    """The script could not be imported; the script holder ends."""

    traceback: str
    message: str
