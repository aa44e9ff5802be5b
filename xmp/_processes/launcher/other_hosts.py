"""A launch as a part of one over several hosts: what its launcher reports, and what it hears.

The engine does not know how hosts reach each other. It is handed a link (``HostLink`` in
``xmp/_hosts/carrier``) and reports one failure or a success; one verdict for all comes back.
"""

from __future__ import annotations

import select
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from xmp._inside.collectives import note_preemption
from xmp._os import signals
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import (
    PreemptElsewhere,
    ProgressElsewhere,
    ProposedStep,
    Stop,
    TakeStacks,
)
from xmp._processes.report import host_error
from xmp._processes.system import linux, processes
from xmp._rules.restarts import may_mend
from xmp._rules.watch import is_victim
from xmp._words.errors import XmpError
from xmp._words.host_words import HostFailure

if TYPE_CHECKING:
    from xmp._processes.messages.order import Failure

    from .supervised import SupervisedLaunch
    from .supervisor_link import SupervisorLink

__all__ = ["HostLink", "OtherHosts"]


_LOOK_EVERY = 2.0
"""Seconds between two looks whether the process that connects the hosts is stopped."""


class HostLink(Protocol):
    """The other hosts of the job. No method waits."""

    verdict: Any
    """How the launch has failed, on whichever host; None until then."""
    all_done: bool
    """Whether the replicas of all hosts have ended well."""

    lost: bool
    """Whether nothing more comes; there is a verdict then, or all are done."""
    preempted: bool
    """Whether a host is about to be taken away."""
    progress: bool
    """Whether replicas of a host have made progress since this was set back."""
    proposals: deque[tuple[int, int, bool]]
    """Rounds of the vote on ``preempted()`` (``ProposedStep``)."""

    @property
    def pid(self) -> int:
        """Of the process that connects this host with the others; 0 when it has ended."""

    def fileno(self) -> int: ...

    def replica_key(self) -> bytes:
        """The key of this attempt's replicas, the same on all hosts; empty without a secret."""

    def take_in(self) -> None: ...

    def fail(self, failure: Any) -> None: ...

    def done(self) -> None: ...

    def advance(self) -> None: ...

    def preempt(self) -> None: ...

    def reached(self, number: int, step: int) -> None: ...

    def leave(self) -> None: ...


class OtherHosts:
    """What one attempt reports to the other hosts, once, and hears of them."""

    def __init__(self, link: HostLink, keeps: bool) -> None:
        self._link = link
        self._keeps = keeps
        """Whether another attempt may follow, which needs the link."""
        self._reported = False
        self._stopped = self._preempted = False
        self._asked_to_leave = False
        """Whether the program or its user ends the launch, by more than a SIGTERM."""
        self._unanswered: int | None = None
        """The round of the vote on ``preempted()`` that the supervisor has not answered."""
        self.waiting = False
        """Whether no process of this host is left, and only other hosts are waited for."""

    def readable(self, link: SupervisorLink, timeout: float | None) -> bool:
        """Whether the supervisor or another host has something to say within that time."""
        watched = [] if self._link.lost else [self._link.fileno()]
        watched += [] if self.waiting else [link.connection.fileno()]
        seconds = _LOOK_EVERY if timeout is None else min(timeout, _LOOK_EVERY)
        came = linux.any_ready(watched, select.POLLIN, seconds)
        if not came and processes.is_stopped(self._link.pid):
            # The other hosts give this one up; here, too, the end of the link ends the launch.
            processes.kill(self._link.pid)
        if not came and self._stopped and not self.waiting and link.is_stopped():
            link.kill()
        return came

    def have_failed(self, launch: SupervisedLaunch) -> bool:
        """Whether the launch has failed on another host; asked while this one has no replicas."""
        if not launch.outcome.processes:
            self._link.take_in()
            self._take_verdict(launch)
        return self._stopped and not launch.outcome.processes

    def _take_verdict(self, launch: SupervisedLaunch) -> bool:
        """Whether there is one, for the first time."""
        verdict = self._link.verdict
        if verdict is None or self._stopped:
            return False
        self._stopped = self._reported = True
        launch.outcome.elsewhere = verdict
        return True

    def hear(self, launch: SupervisedLaunch) -> None:
        """Take in what other hosts say: their failure ends the replicas of this one."""
        self._link.take_in()
        self._pass_on(launch)
        verdict = self._link.verdict
        if self._take_verdict(launch) and not self.waiting:
            if launch.job.relay is not None:
                launch.order(TakeStacks())  # the driver's error has those of all hosts
            launch.order(Stop())
        if self.waiting and (verdict is not None or self._link.all_done):
            launch.finish()

    def _pass_on(self, launch: SupervisedLaunch) -> None:
        """Pass on to the supervisor what concerns replicas; answer for those that have ended."""
        link = self._link
        if link.progress:
            link.progress = False
            self._order(launch, ProgressElsewhere())
        if link.preempted:
            link.preempted, self._preempted = False, True
            self._unanswered = 0
            self._order(launch, PreemptElsewhere())
        while link.proposals:
            proposal = ProposedStep(*link.proposals.popleft())
            if proposal.final:
                note_preemption()
            self._unanswered = None if proposal.final else proposal.round
            self._order(launch, proposal)
        if self.waiting:
            self._answer_for_the_ended()

    def _order(self, launch: SupervisedLaunch, message: Message) -> None:
        if not self.waiting:
            launch.order(message)

    def _answer_for_the_ended(self) -> None:
        """Answer a round of the vote that the supervisor has not, or it would never be decided.

        Orders that come when its last replica has ended are lost.
        """
        if self._unanswered is not None:
            self.reached(self._unanswered, 0)

    # --- what this host reports ----------------------------------------------------------------

    def failed(
        self, launch: SupervisedLaunch, error: BaseException, first: Failure | None = None
    ) -> None:
        """The launch has failed here; a later report says nothing new.

        ``first`` is the failure, while replicas still run.
        """
        if self._reported:
            return
        self._reported = True
        outcome = launch.outcome
        if _is_asked_to_end(launch) or isinstance(error, KeyboardInterrupt):
            why = outcome.ended_by or "its launcher got a signal"
            failure = HostFailure(kind="Ended", text=f"the launch was ended: {why}", final=True)
        else:
            cause = first or next(iter(outcome.failures), None)
            words = f"{cause.error_type}: {cause.message}\n{cause.stderr}" if cause else ""
            failure = host_error.described(error, is_victim(words))
            mends = may_mend(outcome, error, () if first is None else (first,))
            preempted = self._preempted or launch.asked_to_end
            failure = replace(failure, final=preempted or not mends)
        self._link.fail(failure)

    def progressed(self) -> None:
        """Replicas of this host have made progress."""
        self._link.advance()

    def preempted(self, agreed: bool) -> None:
        """This host is about to be taken away, and its replicas ask for that, or are ended."""
        if agreed:
            self._link.preempt()

    def reached(self, number: int, step: int) -> None:
        """The supervisor's answer in a round of the vote."""
        if number == self._unanswered:
            self._unanswered = None
        self._link.reached(number, step)

    def asked(self, launch: SupervisedLaunch, preempted: bool) -> None:
        """The user ends the launch, whose replicas may all have ended here, not on other hosts."""
        self._asked_to_leave = self._asked_to_leave or not preempted
        if not self.waiting or launch.finished:
            return
        if preempted:
            self._stay(launch)
            return
        self._reported = False
        self.failed(launch, XmpError("the launch was ended", code="XMP-R06"))
        with signals.blocked():
            launch.finish()

    def _stay(self, launch: SupervisedLaunch) -> None:
        """A SIGTERM here ends no replica: the others may save their work, and this host waits."""
        launch.sigterm.answered(True)
        self._link.preempt()

    def ended(self, launch: SupervisedLaunch) -> bool:
        """No process of this host is left; whether that is the end of the launch.

        If not, it waits for the verdict, or until all hosts are done.
        """
        if self._stopped:
            return True
        outcome = launch.outcome
        error = outcome.error()
        only_signalled = launch.asked_to_end and not self._asked_to_leave
        if only_signalled and outcome.complete(outcome.processes):
            self._stay(launch)  # the signal came while the last replica returned
        if error is not None or _is_asked_to_end(launch):
            self.failed(launch, error or XmpError("the launch was ended", code="XMP-R06"))
        else:
            self._reported = True
            self._link.done()
        self.waiting = True
        self._answer_for_the_ended()
        return False

    def over(self, launch: SupervisedLaunch, error: BaseException | None) -> None:
        """The launch is over here, with this error."""
        if error is not None:
            self.failed(launch, error)
        if not self._keeps:
            self._link.leave()

    def leave(self) -> None:
        """There is no further attempt."""
        self._link.leave()


def _is_asked_to_end(launch: SupervisedLaunch) -> bool:
    """Whether the program or its user ends it; replicas that were preempted end by themselves."""
    return launch.asked_to_end and not launch.sigterm.agreed
