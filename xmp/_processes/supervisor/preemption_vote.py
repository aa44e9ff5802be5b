"""The vote on the call at which ``preempted()`` turns true: the same in all replicas and hosts."""

from __future__ import annotations

import os
from collections.abc import Callable

from xmp._processes.system import linux

__all__ = ["PreemptionVote", "VoteOverHosts"]

_MOST_REPLICAS = 4095
"""The most replicas of one host: the file has one page."""


class PreemptionVote:
    """The vote of one host's replicas: it finds the first number of calls that none has reached.

    Once the flag is up, each call is reported here and answered at once: with the number that was
    agreed on, or with 0 for "not yet". The vote waits until every replica that has called before
    has reported, then takes the number after the largest.
    """

    def __init__(self) -> None:
        self.flag = linux.memory_file("xmp-preempted")
        """A memory file, of which replicas read the first byte instead of asking.

        The bytes behind it, one for each local rank, say whether ``preempted()`` has turned true
        there.
        """
        os.ftruncate(self.flag, 1 + _MOST_REPLICAS)
        self._counts: dict[int, int] = {}
        """The number of each replica's latest call, by local rank."""
        self._silent: set[int] = set()
        """The local ranks that have not reported since the flag was raised."""
        self._number = 0
        self._begun = False

    def close(self) -> None:
        """Close the file, which the replicas have mapped."""
        os.close(self.flag)

    def begin(self) -> bool:
        """Raise the flag. Return False if it is up already, or no replica looks at it."""
        if self._begun or not self._counts:
            return False
        self._begun, self._silent = True, set(self._counts)
        os.pwrite(self.flag, b"\1", 0)
        return True

    def answer(self, local_rank: int, count: int, answer: Callable[[int], None]) -> None:
        """Note a call, and answer it at once."""
        answer(self.report(local_rank, count))

    def report(self, local_rank: int, count: int) -> int:
        """Note a call. Return the number that was agreed on, or 0."""
        self._counts[local_rank] = count
        self._silent.discard(local_rank)
        self._decide()
        return self._number

    def note_turned(self, local_rank: int) -> None:
        """Tell this replica's children and other threads that ``preempted()`` has turned true."""
        if local_rank < _MOST_REPLICAS:
            os.pwrite(self.flag, b"\1", 1 + local_rank)

    def forget(self, *local_ranks: int) -> None:
        """Forget replicas that will make no further call."""
        for local_rank in local_ranks:
            self._counts.pop(local_rank, None)
            self._silent.discard(local_rank)
        self._decide()

    def _decide(self) -> None:
        if self._begun and not self._number and not self._silent and self._counts:
            self._number = max(self._counts.values()) + 1


class VoteOverHosts(PreemptionVote):
    """This host's part of the vote: it reports how far its replicas are, and takes proposals.

    A replica at the proposed call waits until the proposal is final or another one comes. That is
    the time of one message to the coordinator and back, whatever other replicas do meanwhile.
    """

    def __init__(self, post: Callable[[int, int], None]) -> None:
        """Report with ``post``: it sends the launcher a round and the largest number of calls."""
        super().__init__()
        self._post = post
        self._answered = False
        self._signalled = False
        self._looked = False
        """Whether a replica of this host has ever called."""
        self._proposed = 0
        self._held: list[Callable[[int], None]] = []

    def begin(self) -> bool:
        """Begin the vote: the launcher of this host got SIGTERM. Return whether there is a vote.

        There is none after a second signal, and none if no replica of this host has ever looked:
        such replicas would not end, even if another host has begun the vote.
        """
        if self._signalled or not (super().begin() or (self._begun and self._looked)):
            return False
        self._signalled = True
        self._decide()
        return True

    def begin_elsewhere(self) -> None:
        """Take part in the vote that another host has begun, which is about to be taken away."""
        if not super().begin():
            self._begun = True
        self._decide()

    def propose(self, number: int, step: int, final: bool) -> None:
        """Take the proposal of a round, and let replicas go on that wait at an earlier one."""
        if final:
            self._number = step
        else:
            self._proposed = step
            self._post(number, max(self._counts.values(), default=0))
        held, self._held = self._held, []
        for answer in held:
            answer(self._number)

    def answer(self, local_rank: int, count: int, answer: Callable[[int], None]) -> None:
        """Note a call, and answer it now or with the next proposal."""
        self._looked = True
        number = self.report(local_rank, count)
        if not number and self._proposed and count >= self._proposed:
            self._held.append(answer)
        else:
            answer(number)

    def _decide(self) -> None:
        if self._begun and not self._silent and not self._answered:
            self._answered = True
            self._post(0, max(self._counts.values(), default=0))
