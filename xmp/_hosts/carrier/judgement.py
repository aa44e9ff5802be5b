"""What the coordinator decides for all hosts: one verdict, and the call at which all end.

**The verdict** is the failure that is the cause. Clocks of hosts are not compared: the order of
failures is the one in which the coordinator reads them. A failure that looks like the consequence
of another (a peer closed a connection) is a symptom: it waits for its cause before it becomes the
verdict. While a host is silent, it waits as long as it takes to call that host lost.

**The agreement** is on the call of ``xmp.preempted()`` at which the replicas of all hosts end. Each
supervisor reports the largest number of calls that a replica of its host has made. The coordinator
proposes a larger number. Replicas that reach it wait for the coordinator's next message. A proposal
that no host had passed when it arrived is final; otherwise the coordinator proposes a larger
number, at twice the distance. Nothing waits for the progress of a replica on another host.
"""

from __future__ import annotations

from xmp._words.host_words import HostFailure

from .words import Malformed, Proposal, Step

__all__ = [
    "BEATS_OF_THE_COORDINATOR", "MEMBERS_SILENCE", "MOST_STEPS", "PATIENCE", "SILENCE", "SUSPICION",
    "Agreement", "Judgement", "Standstill",
]  # fmt: skip

SILENCE = 9.0
"""Seconds without a beat after which a host is lost. All hosts must know within 15 s."""
BEATS_OF_THE_COORDINATOR = 3.0
"""Seconds between its own beats; the others beat every second."""
MEMBERS_SILENCE = 11.0
"""Seconds without a beat after which the coordinator is lost. With both limits and both beats, a
network that is cut for 7 s is no loss to either side."""
SUSPICION = 2.5
"""Seconds without a beat after which a host may be the cause of a symptom, which then waits."""
PATIENCE = 0.6
"""Seconds for which a symptom waits for its cause while no host is silent."""
MOST_STEPS = 1 << 39
"""The most calls that a replica can have made: one a microsecond for six days."""
_FARTHEST = 1 << 20
"""The largest distance from an answer to a proposal: every proposal fits a number of ``words``."""


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
        # The others count from the last beat, which was up to so long before it stood still.
        if lost >= MEMBERS_SILENCE - BEATS_OF_THE_COORDINATOR:
            self._ended, self._longest = now, lost
        return lost if lost > self.USUAL else 0.0

    def blamed(self, index: int, now: float) -> int:
        """Return the host that is lost when the connection of host ``index`` has ended.

        That is host 0, where this runs, if it stood still so long that the others may have taken it
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


class Agreement:
    """The vote of one attempt's hosts, begun when one of them is about to be taken away."""

    def __init__(self, hosts: int) -> None:
        self.begun = False
        self._hosts = hosts
        self._steps: dict[int, int] = {}
        """The answers of this round, by host."""
        self._round = 0
        self._proposed = 0
        self._distance = 1

    def begin(self) -> bool:
        """Begin the vote. Return whether this is the first request for it."""
        first, self.begun = not self.begun, True
        return first

    def heard(self, host: int, step: Step) -> Proposal | None:
        """Take a host's answer. Return the proposal for all hosts after the last one of a round.

        Raises Malformed for a number of calls that no replica can have made.
        """
        if not 0 <= step.step <= MOST_STEPS:
            raise Malformed(f"a replica that has asked {step.step} times")
        if step.round != self._round or not self.begun:
            return None
        self._steps[host] = step.step
        if len(self._steps) < self._hosts:
            return None
        largest = max(self._steps.values())
        final = self._round > 0 and largest < self._proposed
        if not final:
            self._proposed = largest + self._distance
            self._distance = min(2 * self._distance, _FARTHEST)
        self._round, self._steps = self._round + 1, {}
        return Proposal(self._round, self._proposed, final)
