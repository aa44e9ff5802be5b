"""The rules for a launch that its launcher ends: how long it waits, and what it does then. Pure.

An exception that leaves the wait for a launch ends the replicas in order; a SIGTERM ends them, and
then the launcher, unless they agree to end by themselves. All times are monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "ANSWER_WAIT", "END", "KILL", "NOTE", "RAISE", "REPORT", "SAY", "EndingEvent", "EndingRules",
    "Raised", "SigtermRules", "Waited", "ends_the_launch",
]  # fmt: skip

SECOND = 1_000_000_000
ANSWER_WAIT = 5 * SECOND
QUIET = SECOND
"""The time in which a launch may end before xmp says what it waits for."""


@dataclass(frozen=True)
class Waited:
    """The launch has not ended, and no exception has come."""

    at: int


@dataclass(frozen=True)
class Raised:
    """An exception has left the wait: of a signal handler of the program."""

    at: int
    kind: type[BaseException]


EndingEvent = Waited | Raised

SAY = "say"
"""Say what the launch waits for."""
KILL = "kill"
"""Kill what has not ended; after another Ctrl-C, which goes on to the caller, at once."""
RAISE = "raise"
"""Let the exception go on to the caller: the time is over."""
NOTE = "note"
"""Print the exception, as the caller gets the one before it."""

REPORT = "report"
"""Print the failure, which is older than the signal: nothing else will report it."""
END = "end"
"""End this process as the signal would have."""


def ends_the_launch(error: BaseException, owned: bool) -> bool:
    """Return whether a launch ends with an exception that leaves the wait for it.

    If it is not ``owned`` by that wait something else may wait for it again.
    """
    return owned or isinstance(error, (KeyboardInterrupt, SystemExit))


class EndingRules:
    """How one launch is ended after an exception of this kind: feed it what comes meanwhile."""

    def __init__(self, at: int, grace: int, why: type[BaseException]) -> None:
        """``grace``: the time that replicas have to end."""
        self._end = at + grace + 2 * ANSWER_WAIT
        self._quiet: int | None = at + min(QUIET, grace)
        self._noted = {why}

    @property
    def until(self) -> int:
        """When ``Waited`` is next due."""
        return self._end if self._quiet is None else self._quiet

    def feed(self, event: EndingEvent) -> str:
        """Take one event; return what to do now, empty for nothing."""
        if isinstance(event, Raised):
            return self._raised(event)
        if event.at < self.until:
            return ""
        says, self._quiet = self._quiet is not None, None
        return SAY if says else KILL

    def _raised(self, event: Raised) -> str:
        if issubclass(event.kind, KeyboardInterrupt):
            return KILL
        if event.at >= self._end:
            return RAISE
        if event.kind in self._noted:
            return ""
        self._noted.add(event.kind)
        return NOTE


class SigtermRules:
    """Whether the launcher must still end by SIGTERM when the launch has ended."""

    def __init__(self) -> None:
        self._came: int | None = None
        """When the signal has come; None without it, or if the replicas end by themselves."""

    def came(self, at: int) -> None:
        """Take the signal."""
        self._came = at

    def answered(self, agreed: bool) -> None:
        """Take the answer: replicas have agreed on a call at which to end, or get the signal."""
        if agreed:
            self._came = None

    def over(self, failures: Iterable[int]) -> list[str]:
        """Take the end of the launch, with the times of its failures; return what to do."""
        if self._came is None:
            return []
        return [REPORT, END] if any(at < self._came for at in failures) else [END]
