"""The vote on the call at which ``preempted()`` turns true, in launches over several hosts."""

from __future__ import annotations

from collections.abc import Callable

from .preemption import PreemptionVote

__all__ = ["VoteOverHosts"]


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
