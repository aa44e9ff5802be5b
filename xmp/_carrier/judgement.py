"""One verdict for all hosts: which of the failures that hosts report is the cause.

Clocks of hosts are not compared: failures come in the order in which the coordinator reads them.
A failure that looks like the consequence of another (a peer closed a connection) waits for that
other one; while a host is silent, for as long as it takes to call it lost.
"""

from __future__ import annotations

from xmp._host_words import HostFailure

__all__ = ["PATIENCE", "SILENCE", "SUSPICION", "Judgement"]

SILENCE = 9.0
"""Seconds without a beat after which a host is lost. All hosts have to know within 15 s."""
SUSPICION = 2.5
"""Seconds without a beat after which a symptom waits: the host may be its cause."""
PATIENCE = 0.6
"""Seconds for which a symptom waits for its cause, with no host silent."""


class Judgement:
    """The failures of one attempt; times are monotonic seconds of the coordinator."""

    def __init__(self) -> None:
        self.verdict: HostFailure | None = None
        self._symptom: HostFailure | None = None
        self._since = 0.0

    def failed(self, failure: HostFailure, now: float) -> None:
        """Take the report of a host."""
        if self.verdict is not None:
            return
        if not failure.symptom:
            self.verdict = failure
        elif self._symptom is None:
            self._symptom, self._since = failure, now

    def judge(self, now: float, suspects: bool) -> None:
        """Take a symptom for the cause when no other failure has come in time."""
        if self.verdict is None and self._symptom is not None:
            patience = SILENCE if suspects else PATIENCE
            if now - self._since >= patience:
                self.verdict = self._symptom

    @property
    def waits(self) -> bool:
        """Whether a symptom waits for its cause."""
        return self.verdict is None and self._symptom is not None
