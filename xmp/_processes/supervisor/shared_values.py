"""Values that one local replica makes for all, and turns that one replica at a time takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from xmp._processes.messages import thread_replicas
from xmp._processes.messages.catalog import Handlers, Message
from xmp._processes.messages.replica import (
    GiveValue,
    MakeValue,
    ReturnTurn,
    SharedValue,
    TakeTurn,
    WantValue,
    WithdrawValue,
    YourTurn,
)
from xmp._types import ReplicaPlan

if TYPE_CHECKING:
    from .replica_handle import ReplicaHandle

__all__ = ["SharedValues"]


class _Question(NamedTuple):
    replica: ReplicaHandle
    number: int
    local_rank: int
    may_make: bool


@dataclass
class _Shared:
    maker: int | None = None
    answer: tuple[list[Any], int] | None = None
    """The fields of ``SharedValue`` behind its number, and a descriptor or -1."""
    waiting: list[_Question] = field(default_factory=list)
    served: set[int] = field(default_factory=set)
    """The local ranks that have it; one that was interrupted asks again."""


class SharedValues:
    """Values that one local replica makes for all, and turns that one at a time takes."""

    def __init__(self, plans: Sequence[ReplicaPlan]) -> None:
        self._count = thread_replicas.count(plans)
        self._values: dict[str, _Shared] = {}
        self._turns: dict[str, dict[ReplicaHandle, int]] = {}
        """The replicas that wait, with the numbers of their questions; the first has the turn."""

    def add_to(self, table: Handlers[[ReplicaHandle, list[int]]]) -> None:
        """Handle the messages of replicas that concern values and turns."""
        table.on(WantValue, self._want)
        table.on(GiveValue, self._give)
        table.on(WithdrawValue, self._withdraw)
        table.on(TakeTurn, self._take_turn)
        table.on(ReturnTurn, self._return_turn)

    def _want(self, message: WantValue, replica: ReplicaHandle, _: list[int]) -> None:
        number, key, local_rank, may_make = message
        question = _Question(replica, number, local_rank, may_make)
        shared = self._values.setdefault(key, _Shared())
        if shared.answer is not None:
            self._serve(key, shared, question)
        elif shared.maker is None and question.may_make:
            _ask_to_make(shared, question)
        else:
            shared.waiting.append(question)

    def _give(self, message: GiveValue, _: ReplicaHandle, descriptors: list[int]) -> None:
        key, *answer = message
        shared = self._values.setdefault(key, _Shared())
        shared.answer = (answer, descriptors[0] if descriptors else -1)
        waiting, shared.waiting = shared.waiting, []
        for question in waiting:
            self._serve(key, shared, question)
        self._forget_served(key, shared)

    def _withdraw(self, message: WithdrawValue, _: ReplicaHandle, __: list[int]) -> None:
        """An interrupted replica neither waits for the value nor makes it."""
        key, local_rank = message
        shared = self._values.get(key)
        if shared is None or shared.answer is not None:
            return
        shared.waiting = [each for each in shared.waiting if each.local_rank != local_rank]
        if shared.maker == local_rank:
            shared.maker = None
            shared.served.discard(local_rank)
            able = next((each for each in shared.waiting if each.may_make), None)
            if able is not None:
                shared.waiting.remove(able)
                _ask_to_make(shared, able)

    def _serve(self, key: str, shared: _Shared, question: _Question) -> None:
        assert shared.answer is not None
        fields, descriptor = shared.answer
        shared.served.add(question.local_rank)
        answer = SharedValue(question.number, *fields)
        _post(question.replica, answer, [descriptor] if descriptor >= 0 else [])
        self._forget_served(key, shared)

    def _forget_served(self, key: str, shared: _Shared) -> None:
        """Drop the value once every replica has it."""
        if len(shared.served) < self._count or self._values.pop(key, None) is None:
            return
        if shared.answer is not None and shared.answer[1] >= 0:
            os.close(shared.answer[1])

    def _take_turn(self, message: TakeTurn, replica: ReplicaHandle, _: list[int]) -> None:
        number, key = message
        queue = self._turns.setdefault(key, {})
        queue[replica] = number
        if next(iter(queue)) is replica:
            _post(replica, YourTurn(number))

    def _return_turn(self, message: ReturnTurn, replica: ReplicaHandle, _: list[int]) -> None:
        self._pass_on(replica, message.key)

    def _pass_on(self, replica: ReplicaHandle, key: str) -> None:
        """Its turn is over, or it waits no more."""
        queue = self._turns.get(key, {})
        had_it = next(iter(queue), None) is replica
        queue.pop(replica, None)
        if had_it and queue:
            first, number = next(iter(queue.items()))
            _post(first, YourTurn(number))

    def forget(self, replica: ReplicaHandle) -> None:
        """A replica has ended: the next one gets its turns."""
        for key in self._turns:
            self._pass_on(replica, key)


def _ask_to_make(shared: _Shared, question: _Question) -> None:
    shared.maker = question.local_rank
    shared.served.add(question.local_rank)
    _post(question.replica, MakeValue(question.number))


def _post(replica: ReplicaHandle, message: Message, descriptors: Sequence[int] = ()) -> None:
    # Only the loop sends it: it watches for room to write while something is posted.
    replica.connection.post(message, list(descriptors))
