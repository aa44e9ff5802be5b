"""One verdict for all hosts: which of the failures that hosts report is the cause.

Clocks of hosts are not compared: the order of failures is the one in which the coordinator reads
them. A failure that looks like the consequence of another (a peer closed a connection) is a
symptom: it waits for its cause before it becomes the verdict. While a host is silent, it waits as
long as it takes to call that host lost.
"""

from __future__ import annotations

from xmp._words.host_words import HostFailure

__all__ = ["MEMBERS_SILENCE", "PATIENCE", "SILENCE", "SUSPICION", "Judgement", "Standstill"]

SILENCE = 9.0
"""Seconds without a beat after which a host is lost. All hosts must know within 15 s."""
MEMBERS_SILENCE = 11.0
"""Seconds without a beat after which the coordinator is lost. It beats every 3 s, the others every
second: with both limits, a network that is cut for 7 s is no loss to either side."""
SUSPICION = 2.5
"""Seconds without a beat after which a host may be the cause of a symptom, which then waits."""
PATIENCE = 0.6
"""Seconds for which a symptom waits for its cause while no host is silent."""


class Standstill:
    """The time in which this process did not run: its host was frozen, or the process stopped.

    That it heard nothing then says nothing about the others; but they did not hear it either.
    """

    USUAL = 1.0
    """Seconds from one turn of a loop to the next on a busy host."""

    def __init__(self, now: float) -> None:
        self._turn = self._ended = now
        self._longest = 0.0

    def turn(self, now: float) -> float:
        """Return the seconds before this turn that are no silence of others; mostly 0."""
        lost, self._turn = now - self._turn, now
        if lost >= MEMBERS_SILENCE:
            self._ended, self._longest = now, lost
        return lost if lost > self.USUAL else 0.0

    def blamed(self, index: int, now: float) -> int:
        """Return the host that is lost when the connection of host ``index`` has ended.

        That is host 0, where this runs, if it stood still so long that the others had to take it
        for lost; otherwise ``index``.
        """
        return 0 if self._longest and now - self._ended < SILENCE else index

    @property
    def text(self) -> str:
        return f"its host stood still for {self._longest:.0f} s"


class Judgement:
    """The failures of one attempt; times are monotonic seconds of the coordinator."""

    def __init__(self) -> None:
        self.verdict: HostFailure | None = None
        self._symptom: HostFailure | None = None
        self._since = 0.0

    def failed(self, failure: HostFailure, now: float) -> None:
        """Take a failure that a host has reported, or that the coordinator has found."""
        if self.verdict is not None:
            return
        if not failure.symptom:
            self.verdict = failure
        elif self._symptom is None:
            self._symptom, self._since = failure, now

    def judge(self, now: float, suspects: bool) -> None:
        """Make a symptom the verdict if no cause has come in time."""
        if self.verdict is None and self._symptom is not None:
            patience = SILENCE if suspects else PATIENCE
            if now - self._since >= patience:
                self.verdict = self._symptom

    @property
    def waits(self) -> bool:
        """Whether a symptom is waiting for its cause."""
        return self.verdict is None and self._symptom is not None
