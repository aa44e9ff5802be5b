"""The rules for one host of a launch over several: what it reports, and what it does for others.

Pure: events in, actions out. Each host reports one failure, or that its replicas have ended well;
one verdict for all comes back. A host without processes waits for it: it answers the vote on
``preempted()`` for its replicas meanwhile, and a SIGTERM ends nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from xmp._words.host_words import HostFailure

__all__ = [
    "FINISH", "NOTE_PREEMPTION", "STAYS", "Asked", "Failed", "Heard", "HostAction", "HostEvent",
    "HostRules", "Left", "NoneLeft", "StepAnswered", "VoteAnswered",
]  # fmt: skip


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """What has come from other hosts since the last time."""

    verdict: HostFailure | None = None
    all_done: bool = False
    """Whether the replicas of all hosts have ended well."""
    progress: bool = False
    preempted: bool = False
    """Whether a host is about to be taken away."""
    proposals: Sequence[tuple[int, int, bool]] = ()
    """Rounds of the vote on ``preempted()``: number, step, whether it is final."""
    has_order: bool = True
    """Whether a supervisor takes orders; before that a verdict only ends the start."""


@dataclass(frozen=True)
class Failed:
    """The launch has failed here."""

    failure: HostFailure
    mends: bool
    """Whether another attempt may succeed."""
    interrupted: bool = False
    """Whether a KeyboardInterrupt in the launcher is the reason."""


@dataclass(frozen=True)
class NoneLeft:
    """No process of the launch is left here."""

    failed: Failed | None = None
    returned: bool = False
    """Whether all replicas have returned from the function."""


@dataclass(frozen=True)
class Asked:
    """The program or its user ends the launch; ``preempted``: by a SIGTERM to the launcher."""

    preempted: bool
    why: str = ""


@dataclass(frozen=True)
class VoteAnswered:
    """The supervisor's answer to a SIGTERM: whether the replicas agree on a step to end at."""

    agreed: bool


@dataclass(frozen=True)
class StepAnswered:
    """The supervisor's answer in a round of the vote between hosts."""

    number: int
    step: int


@dataclass(frozen=True)
class Left:
    """The attempt is over here, after this failure if there is one."""

    failed: Failed | None = None


HostEvent = Heard | Failed | NoneLeft | Asked | VoteAnswered | StepAnswered | Left


# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostAction:
    """One thing to do."""

    to: str
    """"hosts" (report it), "replicas" (order it of the supervisor), or "launch"."""
    name: str
    args: tuple[Any, ...] = ()


FINISH = HostAction("launch", "finish")
"""Nothing more comes: the launch is over."""
STAYS = HostAction("launch", "stays")
"""A SIGTERM ends nothing here: the replicas have ended, and those of other hosts may save."""
NOTE_PREEMPTION = HostAction("launch", "note_preemption")


def _order(name: str, *args: Any) -> HostAction:
    return HostAction("replicas", name, args)


def _report(name: str, *args: Any) -> HostAction:
    return HostAction("hosts", name, args)


class HostRules:
    """The state of one attempt on one host: feed it events, and carry out what they lead to."""

    def __init__(self, keeps: bool, for_driver: bool) -> None:
        """Begin an attempt.

        ``keeps``: another one may follow, which needs the link to the other hosts. ``for_driver``:
        the error of a driver has the stacks of all hosts.
        """
        self.waiting = False
        """Whether no process is left here, and only other hosts are waited for."""
        self.stopped = False
        """Whether a verdict has ended the launch."""
        self._keeps, self._for_driver = keeps, for_driver
        self.has_reported = False
        """Whether a failure says nothing new."""
        self._asked: Asked | None = None
        """The request to end the launch, the one that says why if there are several."""
        self._asked_to_leave = False
        """Whether there was one that is more than a SIGTERM."""
        self._agreed = False
        """Whether the replicas end by themselves after a SIGTERM."""
        self._preempted = False
        """Whether another host is about to be taken away."""
        self._unanswered: int | None = None
        """The round of the vote that the supervisor has not answered."""

    def feed(self, event: HostEvent) -> list[HostAction]:
        """Take one event; return what to do now, in order."""
        if isinstance(event, Heard):
            return self._heard(event)
        if isinstance(event, Failed):
            return self._fail(event)
        if isinstance(event, NoneLeft):
            return self._none_left(event)
        if isinstance(event, Asked):
            return self._ask(event)
        if isinstance(event, VoteAnswered):
            self._agreed = event.agreed
            return [_report("preempt")] if event.agreed else []
        if isinstance(event, StepAnswered):
            return self._answer(event.number, event.step)
        failed = [] if event.failed is None else self._fail(event.failed)
        return failed if self._keeps else [*failed, _report("leave")]

    def _heard(self, event: Heard) -> list[HostAction]:
        orders = [_order("progress")] if event.progress else []
        notes: list[HostAction] = []
        if event.preempted:
            self._preempted, self._unanswered = True, 0
            orders.append(_order("preempt"))
        for number, step, final in event.proposals:
            notes += [NOTE_PREEMPTION] if final else []
            self._unanswered = None if final else number
            orders.append(_order("propose", number, step, final))
        actions = [*notes, *(self._answer_for_the_ended() if self.waiting else orders)]
        if event.verdict is not None and not self.stopped:
            self.stopped = self.has_reported = True
            actions.append(HostAction("launch", "ends_with", (event.verdict,)))
            if event.has_order and not self.waiting:
                actions += [_order("stacks")] if self._for_driver else []
                actions.append(_order("stop"))
        over = self.waiting and (event.verdict is not None or event.all_done)
        return [*actions, FINISH] if over else actions

    def _fail(self, failed: Failed | None) -> list[HostAction]:
        """Report the failure; a later one says nothing new."""
        if self.has_reported:
            return []
        self.has_reported = True
        if failed is None or failed.interrupted or self._is_asked_to_end:
            why = (self._asked.why if self._asked else "") or "its launcher got a signal"
            text = f"the launch was ended: {why}"
            return [_report("fail", HostFailure(kind="Ended", text=text, final=True))]
        final = self._preempted or self._asked is not None or not failed.mends
        return [_report("fail", replace(failed.failure, final=final))]

    @property
    def _is_asked_to_end(self) -> bool:
        """Whether the program or its user ends it; preempted replicas end by themselves."""
        return self._asked is not None and not self._agreed

    def _none_left(self, event: NoneLeft) -> list[HostAction]:
        """Wait for the verdict, or until all hosts are done."""
        if self.stopped:
            return [FINISH]
        actions = []
        if self._asked is not None and not self._asked_to_leave and event.returned:
            actions = self._stay()  # the signal came while the last replica returned
        if self.has_reported or event.failed is not None or self._is_asked_to_end:
            actions += self._fail(event.failed)
        else:
            self.has_reported = True
            actions.append(_report("done"))
        self.waiting = True
        return [*actions, *self._answer_for_the_ended()]

    def _ask(self, event: Asked) -> list[HostAction]:
        """End the launch, whose replicas may all have ended here, but not on other hosts."""
        if event.why or self._asked is None:
            self._asked = event
        self._asked_to_leave = self._asked_to_leave or not event.preempted
        if not self.waiting:
            return []
        if event.preempted:
            return self._stay()
        self.has_reported = False
        return [*self._fail(None), FINISH]

    def _stay(self) -> list[HostAction]:
        self._agreed = True
        return [STAYS, _report("preempt")]

    def _answer(self, number: int, step: int) -> list[HostAction]:
        if number == self._unanswered:
            self._unanswered = None
        return [_report("reached", number, step)]

    def _answer_for_the_ended(self) -> list[HostAction]:
        """Answer the round that the supervisor has not, or it would never be decided.

        Orders that come when its last replica has ended are lost.
        """
        return [] if self._unanswered is None else self._answer(self._unanswered, 0)
