"""What the supervisor holds of each replica, and what local replicas share through it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xmp._types import ReplicaPlan

from . import family, kernel, mates
from .account import Timeline
from .order import Failure
from .output import Outlets, Source, last_lines
from .role import Seat
from .wire import Closed, Wire, pair

__all__ = ["STACKS", "Member", "Shares"]

STACKS = "xmp-stacks-"
"""With the rank, the name of a replica's file for its stacks: one may ask from outside."""

_FATAL = "Fatal Python error: "


@dataclass(eq=False)
class Member:
    """One replica as its parent sees it."""

    plan: ReplicaPlan
    wire: Wire
    sources: list[Source]
    """Of standard error, and of standard output where that is captured apart."""
    stacks: int
    pid: int = -1
    forked: int = 0
    ended: bool = False
    returned: bool = False
    failure: Failure | None = None
    timeline: Timeline = field(default_factory=Timeline)
    dumped: int = 0
    """Up to here it answered questions for its stacks; what follows a native crash has written."""

    @classmethod
    def prepare(
        cls, plan: ReplicaPlan, seat: Seat, outlets: Outlets
    ) -> tuple[Member, tuple[int, ...]]:
        """The parent's side, and the child's descriptors: channel, error, and captured output.

        All lie above the seat, so that the child's one ``closerange`` takes them away.
        """
        ours, theirs = pair()
        above = seat.above
        sources, said = outlets.open(plan, above)
        member = cls(
            plan,
            ours.moved(above),
            sources,
            kernel.move_above(kernel.memory_file(f"{STACKS}{plan.rank}"), above),
        )
        return member, (theirs.moved(above).detach(), *said)

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.plan.rank

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to the replica, or to its whole process group."""
        if self.ended:
            return
        try:
            if group:
                os.killpg(self.pid, number)
            os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # ended a moment ago; a fresh fork that has no group yet gets the second call

    def flush(self) -> bool:
        """Send what was posted, as far as it takes it now; True when nothing is left to send."""
        try:
            return self.wire.flush()
        except Closed:
            return True  # its end is noticed where children are reaped

    def fail(self, speaker: int = -1, **known: Any) -> Failure:
        """Note how it failed; the first account counts. One of its mates may be the speaker."""
        if self.failure is None:
            plan = next((mate for mate in self.plan.mates if mate.rank == speaker), self.plan)
            self.failure = Failure(
                rank=plan.rank,
                local_rank=plan.local_rank,
                pid=self.pid,
                device=plan.device,
                **known,
            )
        return self.failure

    def note_end(self, at: int, status: int) -> None:
        """Take its wait status in."""
        self.ended = True
        code = os.waitstatus_to_exitcode(status)
        if code < 0 and self.failure is not None:
            return  # it had told how it failed; that it was ended in its last lines is ours
        if code < 0:
            failure = self.fail(kind="signal", at=at)
            failure.signal_name = family.signal_name(-code)
        elif code or self.failure is not None:
            failure = self.fail(kind="exit", at=at)
        else:
            return
        failure.exit_code = code

    def ask_stacks(self) -> int:
        """Ask for the stacks of all threads; returns the size of what was there before."""
        size = os.fstat(self.stacks).st_size
        from .replica import DUMP_SIGNAL

        self.signal(DUMP_SIGNAL)
        return size

    def answered(self, asked: int) -> str:
        """The stacks that it was asked for, where ``ask_stacks`` gave this number."""
        text = self._read_stacks(asked)
        if text:
            self.dumped = os.fstat(self.stacks).st_size
        return text

    def tell_last_words(self, failure: Failure, answered: str) -> None:
        """Add what it has written last: on standard error, and of its stacks.

        faulthandler writes of a native crash behind what it had ``answered``, or into it. When the
        interpreter itself gives up (``Py_FatalError``) both are on standard error.
        """
        # What stands before it there was asked for from outside.
        _, mark, text = self._read_stacks(self.dumped).partition(_FATAL)
        failure.stacks = mark + text
        failure.stderr, failure.stdout = self.tails()
        if not mark and failure.signal_name == "SIGABRT":
            said, mark, text = self.sources[0].kept().rpartition(_FATAL)
            if mark:
                failure.stacks, failure.stderr = mark + text, last_lines(said)
        failure.stacks = failure.stacks or answered

    def _read_stacks(self, start: int) -> str:
        size = os.fstat(self.stacks).st_size
        return os.pread(self.stacks, min(size - start, 256 * 1024), start).decode(errors="replace")

    def tails(self) -> tuple[str, str]:
        """Its last lines on standard error, and on standard output where that is captured."""
        errors, *output = [source.tail() for source in self.sources]
        return errors, output[0] if output else ""

    def close(self) -> None:
        """Close the parent's descriptors."""
        self.wire.close()
        for source in self.sources:
            source.close()
        os.close(self.stacks)


class _Question(NamedTuple):
    member: Member
    number: int
    local_rank: int
    may_make: bool


@dataclass
class _Shared:
    maker: int | None = None
    answer: tuple[tuple[Any, ...], int] | None = None
    waiting: list[_Question] = field(default_factory=list)
    served: set[int] = field(default_factory=set)
    """The local ranks that have it; one that was interrupted asks again."""


class Shares:
    """Values that one local replica makes for all, and turns that one at a time takes."""

    def __init__(self, plans: Sequence[ReplicaPlan]) -> None:
        self._count = mates.count(plans)
        self._values: dict[str, _Shared] = {}
        self._turns: dict[str, dict[Member, int]] = {}
        """Who waits, with the number of the question; the first of them has the turn."""

    def handle(self, member: Member, message: tuple[Any, ...], descriptors: list[int]) -> bool:
        """Answer one of a replica's questions; False when it is none of ours."""
        name, *rest = message
        if name == "share":
            number, key, local_rank, may_make = rest
            self._ask(key, _Question(member, number, local_rank, may_make))
        elif name == "shared":
            self._give(rest, descriptors)
        elif name == "unshare":
            self._withdraw(*rest)
        elif name == "lock":
            self._lock(member, *rest)
        elif name == "unlock":
            self._unlock(member, rest[0])
        else:
            return False
        return True

    def _ask(self, key: str, question: _Question) -> None:
        shared = self._values.setdefault(key, _Shared())
        if shared.answer is not None:
            self._serve(key, shared, question)
        elif shared.maker is None and question.may_make:
            _have_made(shared, question)
        else:
            shared.waiting.append(question)

    def _give(self, value: list[Any], descriptors: list[int]) -> None:
        key, *answer = value
        shared = self._values.setdefault(key, _Shared())
        shared.answer = (("value", *answer), descriptors[0] if descriptors else -1)
        waiting, shared.waiting = shared.waiting, []
        for question in waiting:
            self._serve(key, shared, question)
        self._forget_served(key, shared)

    def _withdraw(self, key: str, local_rank: int) -> None:
        """Whoever was interrupted waits no more, and does not make it."""
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
                _have_made(shared, able)

    def _serve(self, key: str, shared: _Shared, question: _Question) -> None:
        assert shared.answer is not None
        message, descriptor = shared.answer
        shared.served.add(question.local_rank)
        answer = (question.number, *message)
        _say(question.member, answer, [descriptor] if descriptor >= 0 else [])
        self._forget_served(key, shared)

    def _forget_served(self, key: str, shared: _Shared) -> None:
        """Once everybody has it, the value may go."""
        if len(shared.served) < self._count or self._values.pop(key, None) is None:
            return
        if shared.answer is not None and shared.answer[1] >= 0:
            os.close(shared.answer[1])

    def _lock(self, member: Member, number: int, key: str) -> None:
        line = self._turns.setdefault(key, {})
        line[member] = number
        if next(iter(line)) is member:
            _say(member, (number, "locked"))

    def _unlock(self, member: Member, key: str) -> None:
        """Its turn is over, or it waits no more."""
        line = self._turns.get(key, {})
        had_it = next(iter(line), None) is member
        line.pop(member, None)
        if had_it and line:
            first, number = next(iter(line.items()))
            _say(first, (number, "locked"))

    def forget(self, member: Member) -> None:
        """A replica has ended: its turns go on to the next."""
        for key in self._turns:
            self._unlock(member, key)


def _have_made(shared: _Shared, question: _Question) -> None:
    shared.maker = question.local_rank
    shared.served.add(question.local_rank)
    _say(question.member, (question.number, "make"))


def _say(member: Member, message: tuple[Any, ...], descriptors: Sequence[int] = ()) -> None:
    # The loop sends it, and is woken for the rest: nobody else may empty what it waits for.
    member.wire.post(message, list(descriptors))
