"""Values that one local replica makes for all, and turns that one replica at a time takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xmp._processes.messages import replica as messages
from xmp._processes.messages import thread_replicas
from xmp._processes.messages.catalog import Handlers
from xmp._processes.messages.packets import close_all
from xmp._processes.messages.untrusted import Arrived
from xmp._types import ReplicaPlan

if TYPE_CHECKING:
    from .replica_handle import ReplicaHandle

__all__ = ["SharedValues"]


@dataclass
class _Shared:
    maker: int | None = None
    answer: tuple[list[Any], list[int]] | None = None
    """The fields of ``SharedValue`` behind its number, and its descriptors."""
    waiting: list[tuple[ReplicaHandle, messages.WantValue]] = field(default_factory=list)
    served: set[int] = field(default_factory=set)
    """The local ranks that have it; one that was interrupted asks again."""


class SharedValues:
    """Only posts: the supervisor's loop sends, and watches for room to write meanwhile."""

    def __init__(self, plans: Sequence[ReplicaPlan]) -> None:
        self._count = thread_replicas.count(plans)
        self._values: dict[str, _Shared] = {}
        self._turns: dict[str, dict[ReplicaHandle, int]] = {}
        """The replicas that wait, with the numbers of their questions; the first has the turn."""

    def add_to(self, table: Handlers[[ReplicaHandle, Arrived]]) -> None:
        """Handle the messages of replicas that concern values and turns."""
        table.on(messages.WantValue, self._want)
        table.on(messages.GiveValue, self._give)
        table.on(messages.WithdrawValue, self._withdraw)
        table.on(messages.TakeTurn, self._take_turn)
        table.on(messages.ReturnTurn, lambda message, who, _: self._pass_on(who, message.key))

    def _want(self, message: messages.WantValue, replica: ReplicaHandle, _: Arrived) -> None:
        shared = self._values.setdefault(message.key, _Shared())
        if shared.answer is not None:
            self._serve(shared, replica, message)
        elif shared.maker is None and message.may_make:
            _ask_to_make(shared, replica, message)
        else:
            shared.waiting.append((replica, message))

    def _give(self, message: messages.GiveValue, maker: ReplicaHandle, arrived: Arrived) -> None:
        key, *answer = message
        shared = self._values.get(key)
        asked = shared is not None and shared.maker in maker.local_ranks
        if shared is None or not asked or shared.answer is not None:
            close_all(arrived.descriptors)
            return
        shared.answer = (answer, arrived.descriptors)
        waiting, shared.waiting = shared.waiting, []
        for replica, question in waiting:
            self._serve(shared, replica, question)
        self._forget_served(key, shared)

    def _withdraw(self, message: messages.WithdrawValue, _: ReplicaHandle, __: Arrived) -> None:
        """An interrupted replica neither waits for the value nor makes it."""
        key, local_rank = message
        shared = self._values.get(key)
        if shared is None or shared.answer is not None:
            return
        shared.waiting = [each for each in shared.waiting if each[1].local_rank != local_rank]
        if shared.maker == local_rank:
            shared.maker = None
            shared.served.discard(local_rank)
            able = next((each for each in shared.waiting if each[1].may_make), None)
            if able is not None:
                shared.waiting.remove(able)
                _ask_to_make(shared, *able)

    def _serve(self, shared: _Shared, replica: ReplicaHandle, question: messages.WantValue) -> None:
        assert shared.answer is not None
        fields, descriptors = shared.answer
        shared.served.add(question.local_rank)
        replica.connection.post(messages.SharedValue(question.number, *fields), descriptors)
        self._forget_served(question.key, shared)

    def _forget_served(self, key: str, shared: _Shared) -> None:
        """Drop the value once every replica has it."""
        if len(shared.served) < self._count or self._values.pop(key, None) is None:
            return
        close_all(shared.answer[1] if shared.answer is not None else ())

    def _take_turn(self, message: messages.TakeTurn, replica: ReplicaHandle, _: Arrived) -> None:
        number, key = message
        queue = self._turns.setdefault(key, {})
        queue[replica] = number
        if next(iter(queue)) is replica:
            replica.connection.post(messages.YourTurn(number))

    def _pass_on(self, replica: ReplicaHandle, key: str) -> None:
        """Its turn is over, or it waits no more."""
        queue = self._turns.get(key, {})
        had_it = next(iter(queue), None) is replica
        queue.pop(replica, None)
        if had_it and queue:
            first, number = next(iter(queue.items()))
            first.connection.post(messages.YourTurn(number))

    def forget(self, replica: ReplicaHandle) -> None:
        """A replica has ended: the next one gets its turns."""
        for key in self._turns:
            self._pass_on(replica, key)


def _ask_to_make(shared: _Shared, replica: ReplicaHandle, question: messages.WantValue) -> None:
    shared.maker = question.local_rank
    shared.served.add(question.local_rank)
    replica.connection.post(messages.MakeValue(question.number))
