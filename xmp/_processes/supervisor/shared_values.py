"""Values that one local replica makes for all, and turns that replicas take one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xmp._processes.messages import replica as messages
from xmp._processes.messages import thread_replicas
from xmp._processes.messages.catalog import Handlers
from xmp._processes.messages.untrusted import Arrived
from xmp._processes.system.descriptors import close_all
from xmp._words.types import ReplicaPlan

from .heard_voices import HeardVoice

__all__ = ["MOST_KEPT", "SharedValues"]

MOST_KEPT = 64
"""The most values kept for later requests; the ones requested longest ago are dropped."""


@dataclass
class _Shared:
    key: tuple[bool, str]
    maker: HeardVoice | None = None
    answer: messages.SharedValue | None = None
    descriptors: Sequence[int] = ()
    waiting: list[tuple[HeardVoice, messages.WantValue]] = field(default_factory=list)
    served: set[int] = field(default_factory=set)
    """The local ranks that have the value; one that was interrupted asks again."""


class SharedValues:
    """The shared values and turns of one host's replicas.

    The voice that asks first makes a value, or the owner that the question names. A voice that is
    closed makes and waits for nothing.
    """

    def __init__(self, plans: Sequence[ReplicaPlan]) -> None:
        self._count = thread_replicas.count(plans)
        self._values: dict[tuple[bool, str], _Shared] = {}
        """The values by (whether to keep it, key), in the order of their latest requests."""
        self._left: set[int] = set()
        """The local ranks that have left their function: they make nothing for others."""
        self._turns: dict[str, list[HeardVoice]] = {}
        """The voices that wait for the turn of each key; the first one has it."""

    def add_to(self, table: Handlers[[HeardVoice, Arrived]]) -> None:
        """Add the handlers of the questions about values and turns."""
        table.on(messages.WantValue, self._want)
        table.on(messages.GiveValue, self._give)
        table.on(messages.TakeTurn, self._take_turn)
        table.on(messages.ReturnTurn, lambda _, voice, __: self._return_turn(voice))

    def _want(self, message: messages.WantValue, voice: HeardVoice, _: Arrived) -> None:
        key = message.kept, message.key
        shared = self._values.pop(key, None) or _Shared(key)
        self._values[key] = shared
        if shared.answer is not None:
            _serve(shared, voice)
            self._drop_served(shared)
        else:
            shared.waiting.append((voice, message))
            self._find_maker(shared)

    def _find_maker(self, shared: _Shared) -> None:
        """Ask the first voice that may make the value; else tell those whose owner has left."""
        if shared.maker is not None:
            return
        for waits in shared.waiting:
            voice, question = waits
            if question.owner in (-1, voice.local_rank):
                shared.waiting.remove(waits)
                shared.maker = voice
                shared.served.add(voice.local_rank)
                voice.answer(messages.MakeValue())
                return
        # Replicas that leave their function, too, may still meet the owner: a framework's do.
        lost = [
            (voice, question)
            for voice, question in shared.waiting
            if question.owner in self._left and voice.local_rank not in self._left
        ]
        for voice, question in lost:
            shared.waiting.remove((voice, question))
            voice.answer(messages.NoValue(question.owner))

    def _give(self, message: messages.GiveValue, maker: HeardVoice, arrived: Arrived) -> None:
        shared = next((each for each in self._values.values() if each.maker is maker), None)
        if shared is None:
            close_all(arrived.descriptors)
            return
        shared.maker = None
        shared.answer = messages.SharedValue(*message)
        shared.descriptors = arrived.descriptors
        waiting, shared.waiting = shared.waiting, []
        for voice, _ in waiting:
            _serve(shared, voice)
        self._drop_served(shared)

    def _drop_served(self, shared: _Shared) -> None:
        """Drop the value once every replica has it; of kept ones, drop failures and the oldest.

        The failure of a kept value goes to the replicas that wait for it; a later call tries again.
        """
        assert shared.answer is not None
        if not shared.key[0]:
            if len(shared.served) == self._count:
                self._drop(shared)
            return
        if not shared.answer.good:
            self._drop(shared)
        kept = [each for key, each in self._values.items() if key[0] and each.answer is not None]
        for each in kept[:-MOST_KEPT]:
            self._drop(each)

    def _drop(self, shared: _Shared) -> None:
        if self._values.pop(shared.key, None) is not None:
            close_all(shared.descriptors)

    def _take_turn(self, message: messages.TakeTurn, voice: HeardVoice, _: Arrived) -> None:
        queue = self._turns.setdefault(message.key, [])
        if voice not in queue:
            queue.append(voice)
            if queue[0] is voice:
                voice.answer(messages.YourTurn())

    def _return_turn(self, voice: HeardVoice) -> None:
        """End the voice's turn, or its wait for one; the next one gets the turn."""
        for key, queue in [*self._turns.items()]:
            if voice not in queue:
                continue
            had_it = queue[0] is voice
            queue.remove(voice)
            if not queue:
                del self._turns[key]
            elif had_it:
                queue[0].answer(messages.YourTurn())

    def forget(self, voice: HeardVoice) -> None:
        """Forget a closed voice: it waits for nothing, makes no value and has no turn any more."""
        self._return_turn(voice)
        for shared in [*self._values.values()]:
            shared.waiting = [each for each in shared.waiting if each[0] is not voice]
            if shared.maker is voice:
                shared.maker = None
                shared.served.discard(voice.local_rank)
                self._find_maker(shared)

    def begin_call(self) -> None:
        """Drop the values of the last call of a gang, and expect every replica again.

        A thread that still waits for one is told that it will not come.
        """
        for shared in [*self._values.values()]:
            for voice, question in shared.waiting:
                voice.answer(messages.NoValue(question.owner))
            self._drop(shared)
        self._left.clear()

    def leave(self, *local_ranks: int) -> None:
        """Note that these replicas have left their function: they make nothing for others."""
        self._left.update(local_ranks)
        for shared in self._values.values():
            self._find_maker(shared)


def _serve(shared: _Shared, voice: HeardVoice) -> None:
    assert shared.answer is not None
    shared.served.add(voice.local_rank)
    voice.answer(shared.answer, *shared.descriptors)
