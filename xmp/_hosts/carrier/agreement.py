"""The call of ``xmp.preempted()`` at which the replicas of all hosts end.

Each supervisor reports the largest number of calls that a replica of its host has made. The
coordinator proposes a larger one. Replicas that arrive there wait for the next message, so that a
proposal which no host had passed is final; after any other one comes a larger one, at twice the
distance. Nothing waits for the progress of a replica on another host.
"""

from __future__ import annotations

from .words import Malformed, Proposal, Step

__all__ = ["MOST_STEPS", "Agreement"]

MOST_STEPS = 1 << 39
"""Calls that a replica can have made: one a microsecond for six days."""
_FARTHEST = 1 << 20
"""Calls from the largest answer to a proposal, so that every proposal is a number of ``words``."""


class Agreement:
    """What the hosts of one attempt have reported since one of them was to be taken away."""

    def __init__(self, hosts: int) -> None:
        self.begun = False
        self._hosts = hosts
        self._steps: dict[int, int] = {}
        """The answers of this round, by host."""
        self._round = 0
        self._proposed = 0
        self._distance = 1

    def begin(self) -> bool:
        """Whether this is the first request."""
        first, self.begun = not self.begun, True
        return first

    def heard(self, host: int, step: Step) -> Proposal | None:
        """Take a host's answer; after the last one of a round, what all hosts hear.

        Raises Malformed for a number of calls that nothing has made.
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
