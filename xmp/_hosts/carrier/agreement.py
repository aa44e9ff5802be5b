"""The call of ``xmp.preempted()`` at which the replicas of all hosts end.

Each supervisor reports the largest number of calls that a replica of its host has made. The
coordinator proposes a larger number. Replicas that reach it wait for the coordinator's next
message. A proposal that no host had passed when it arrived is final; otherwise the coordinator
proposes a larger number, at twice the distance. Nothing waits for the progress of a replica on
another host.
"""

from __future__ import annotations

from .words import Malformed, Proposal, Step

__all__ = ["MOST_STEPS", "Agreement"]

MOST_STEPS = 1 << 39
"""The most calls that a replica can have made: one a microsecond for six days."""
_FARTHEST = 1 << 20
"""The largest distance from an answer to a proposal: every proposal fits a number of ``words``."""


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
