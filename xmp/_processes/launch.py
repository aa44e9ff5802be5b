"""The launcher's side of one launch: it starts a supervisor, takes in what it tells, unwinds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from xmp._errors import StartError, XmpError
from xmp._limits import Overdue

from . import remains, report, timeouts
from .account import StartAccount, Timeline
from .hearing import Ear
from .job import Job, ReplicaProcess, Silence
from .lending import Lender
from .link import Link
from .living import live, preempt_all, put_away_ended
from .mates import spread
from .memory import Memory, Watcher
from .order import Failure
from .patience import Patience
from .preempting import Sigterm
from .progress import Progress
from .results import received
from .stacks import grouped
from .terminal import say, signals_of_the_user
from .wire import Closed

__all__ = ["Launch"]

_ANSWER_WAIT = 5.0
_BREATH = 0.25
_ORDERLY: dict[type, str] = {KeyboardInterrupt: "interrupt", SystemExit: "stop"}
_ENDINGS = ("interrupt", "stop", "kill", "preempt")


class Launch:
    """One launch, from the packed call to the last report."""

    def __init__(self, job: Job, release: Callable[[], None] = lambda: None) -> None:
        self.job = job
        self.grace = job.grace
        """Seconds; a ``join`` may have given others than the job has."""
        self.processes: dict[int, ReplicaProcess] = {}
        self.results: dict[int, Any] = {}
        self.timeline: dict[int, Timeline] = {}
        self.failures: list[Failure] = []
        self.stacks: dict[int, str] = {}
        self.finished = False
        self.asked_to_end = False
        self.orphaned = False
        """Its supervisor has ended without a last word."""
        self._broken: BaseException | None = None
        self.overdue: Overdue | None = None
        self._imported: list[str] = []
        self._stacks_answer: dict[int, str] | None = None
        self._shows_stacks = False
        self._sigterm = Sigterm()
        self._remains = ""
        self._undo = ExitStack()
        self._undo.callback(release)
        self._plans = {plan.rank: plan for plan in job.host.replicas}
        self._found = Memory()
        self._telling = job.telling or Silence()
        self._progress = Progress(job.host.replicas, job.called, job.progress)
        self._patience = Patience(job.called, job.limits, self._progress)
        self._link = Link(job, self._patience, self._undo.callback)
        self._lender = Lender(self.ask, self._patience)
        self._ear = Ear(self._readable, self._hear)

    # --- starting ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start supervisor and replicas; returns when every replica has been made.

        Raises TypeError for what cannot be packed and StartError for what does not come up;
        nothing is left behind then.
        """
        put_away_ended()
        try:
            self._telling.begin(self.job.called, self.job.plan, self.job.restart_count)
            self._link.prepare()
            self._link.begin()
            self._memory = Watcher()
            self._wait_for_start()
        except BaseException as error:
            self._abandon(error)
            raise
        if self._broken is not None:
            raise self._broken
        self._progress.hide()
        live.add(self)

    def _wait_for_start(self) -> None:
        def there() -> bool:
            return bool(self.processes) or self.finished

        def arrives(seconds: float | None) -> bool:
            if self._ear.until(there, seconds):
                return True
            self._link.replace_stopped()
            return False

        try:
            self._patience.wait(arrives, self._link.doing, _ANSWER_WAIT)
        except KeyboardInterrupt:
            # While it loads, a supervisor hears nothing: the lifeline ends it. But what has just
            # reached the user's function shall end in order.
            if not self._link.open or not self._ear.until(there, _BREATH):
                raise
            self.ask("interrupt")
            self.wait(None)
            raise

    # --- hearing -------------------------------------------------------------------------------

    def put_away(self) -> None:
        """Take in what has come, unless somebody is at it."""
        self._ear.take_in()

    def _readable(self, timeout: float | None) -> bool:
        return not self.finished and self._link.wire.readable(timeout)

    def _hear(self) -> bool:
        """Take in one message; False when the last one has been heard."""
        if self.finished:
            return False
        try:
            (name, *rest), descriptors = self._link.wire.recv()
        except Closed:
            self._lost()
            return False
        getattr(self, f"_on_{name}")(descriptors, *rest)
        return not self.finished

    def _on_started(
        self,
        _: list[int],
        pid: int,
        pids: list[tuple[int, int, int]],
        received: int,
        loaded: int,
    ) -> None:
        self._link.has_started(pid)
        for rank, replica, forked in pids:
            self.processes[rank] = ReplicaProcess(rank, replica)
            self._progress.reached(rank, self._link.order.first_phase, replica)
            self.timeline[rank] = Timeline(self._link.order.called, received, loaded, forked)

    def _on_entered(self, _: list[int], rank: int, at: int) -> None:
        self.timeline[rank].entered = at
        self._progress.reached(rank, "running")

    def _on_phase(self, _: list[int], rank: int, name: str) -> None:
        self._progress.reached(rank, name)

    def _on_returned(
        self,
        descriptors: list[int],
        rank: int,
        data: bytes | None,
        size: int,
        timeline: Timeline,
        imported: list[str],
    ) -> None:
        self.timeline[rank] = timeline.completed(self.timeline[rank])
        self._imported += imported
        try:
            self.results |= received(self._plans[rank], data, size, descriptors)
        except XmpError as error:
            self._broken = self._broken or error

    @property
    def stood_still(self) -> int:
        """Nanoseconds for which the user has stopped it (Ctrl-Z)."""
        return self._patience.stood_still

    def account(self) -> StartAccount:
        """Where the time of the start went."""
        times = {
            rank: time
            for first, time in self.timeline.items()
            for rank in spread(self._plans[first], None)
        }
        return StartAccount(times, self._link.parents.imports())

    def _on_ended(self, _: list[int], rank: int, code: int, largest: int) -> None:
        self.processes[rank].exitcode = code
        self._memory.largest[rank] = largest
        self._progress.reached(rank, "failed" if code else "done")

    def _on_events(self, _: list[int], events: list[tuple[Any, ...]]) -> None:
        self._telling.tell(events)

    def _on_stacks(self, _: list[int], stacks: dict[int, str]) -> None:
        self._stacks_answer = stacks
        if self._shows_stacks:
            self._shows_stacks = False
            say("\n".join(["xmp: where the living replicas are:", *grouped(stacks)]))

    def _on_preempted(self, _: list[int], agreed: bool) -> None:
        self._sigterm.answered(agreed)

    def _on_debugging(self, _: list[int], *told: Any) -> None:
        self._progress.close()
        self._lender.told(*told)

    def _on_unsafe(self, _: list[int], culprits: list[str]) -> None:
        self._link.begin_with_fresh_interpreters(culprits)

    def _on_failed(self, _: list[int], text: str, words: str, pickled: bytes | None) -> None:
        self._stop_short(report.not_loaded(text, words, pickled))

    def _on_cannot(self, _: list[int], text: str) -> None:
        self._stop_short(StartError(text))

    def _on_done(
        self, _: list[int], verdict: Any, failures: list[Failure], stacks: dict[int, str]
    ) -> None:
        self.failures, self.stacks, self.overdue = failures, stacks, verdict.overdue
        self._found = self._memory.look() if failures else Memory()
        self._finish()

    def _lost(self) -> None:
        """The supervisor is gone without a last word."""
        self.orphaned = self._broken is None
        parts = [f"the supervisor ended early: {self._link.how_it_ended()}"]
        parts += filter(None, [self._memory.look().found(killed=False)])
        self._broken = self._broken or StartError("\n".join(parts))
        self._finish()

    def _stop_short(self, error: BaseException) -> None:
        self._broken = error
        self._finish()

    # --- ending --------------------------------------------------------------------------------

    def _finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        self._progress.close()
        live.discard(self)
        # Results are large: they go with their last user, not with the next collection.
        self._lender.end()
        self._ear.close()
        self._link.end()
        self._remains = remains.after(self.processes.values(), self._link.parents.needs.rules)
        self._undo.close()
        if slow := self.account().slow():
            say(slow)
        self._link.parents.offer(self._imported)
        put_away_ended()
        if self.job.telling is not None:
            self._telling.end(self._error())

    def _abandon(self, error: BaseException) -> None:
        """Undo a start that did not succeed."""
        ended = self.finished
        self._progress.close()
        self._link.end()
        self.finished = True
        self._undo.close()
        if not ended:
            self._telling.end(error)

    def drop(self) -> None:
        """In a forked child of the launcher: this launch is not ours."""
        self.finished = True
        self._progress.drop()
        launcher = self._link.order.state.pid
        self._broken = XmpError(f"only process {launcher}, which launched it, can join it")
        self._link.drop()
        self._telling.drop()

    def ask(self, name: str, *rest: Any, descriptors: Sequence[int] = ()) -> None:
        """Ask the supervisor for something; nothing happens when it is gone."""
        self.asked_to_end = self.asked_to_end or name in _ENDINGS
        if name == "grace":
            (self.grace,) = rest
        elif name == "preempt":
            self._sigterm.came(self._link.supervisor)
        if not self.finished:
            self._progress.asked(name)
            self._patience.asked(name)
            try:
                self._link.wire.send((name, *rest), list(descriptors))
            except Closed:
                pass  # the next message that is read says why

    def wait(self, timeout: float | None) -> bool:
        """Take in messages until the end or for ``timeout`` seconds; Ctrl-C ends in order."""
        interrupt: BaseException | None = None
        patience = _ANSWER_WAIT + 2 * self.grace
        while True:
            try:
                with signals_of_the_user(self._lender.by_signal, self.show_stacks, preempt_all):
                    if interrupt is None:
                        return self._pump_to_the_end(timeout)
                    self.end_within(patience)
                    break
            except (KeyboardInterrupt, SystemExit) as asked:
                self.ask("kill" if interrupt else _ORDERLY[type(asked)])
                patience, interrupt = _ANSWER_WAIT if interrupt else patience, asked
        raise interrupt

    def _pump_to_the_end(self, timeout: float | None) -> bool:
        """Take in messages until the end; a supervisor that forgets the time is killed."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            look = self._lender.look
            left = None if end is None or look else max(0.0, end - time.monotonic())
            last = self._patience.left_to_supervisor(self.grace, self._link.is_stopped)
            wishes = (left, last, look, self._progress.next())
            waits = [max(0.0, seconds) for seconds in wishes if seconds is not None]
            if self._ear.until(
                lambda: self.finished or self._lender.pending, min(waits, default=None)
            ):
                if self._lender.settle() or not self.finished:
                    continue  # of two threads, or launches, one lends; the other waits on
                self._sigterm.carry_out()
                return True
            if left == 0:
                return False
            self._progress.glance(self._link.doing)
            if last is not None and last <= 0:
                codes = [process.exitcode for process in self.processes.values()]
                writes = None not in codes and not self._link.is_stopped()
                self._broken = self._patience.not_ended(self._link.supervisor, writes)
                self.end_within(0)

    def end_within(self, seconds: float) -> None:
        """Wait for the end that was asked for; a supervisor that does not answer is killed."""
        if not self._ear.until(lambda: self.finished, seconds):
            self._link.kill()
            self._ear.until(lambda: self.finished, None)

    def live_stacks(self) -> dict[int, str]:
        """The stacks of all living replicas, now."""
        self._stacks_answer = None
        self.ask("stacks")
        if self._ear.until(lambda: self._stacks_answer is not None or self.finished, _ANSWER_WAIT):
            return self._stacks_answer or {}
        from . import outside  # the supervisor hangs

        return outside.taken(self._link.supervisor)

    def show_stacks(self) -> None:
        """Ask for the stacks of all living replicas: they are printed when they have come."""
        self._shows_stacks = True
        self.ask("stacks")

    def outcome(self) -> None:
        """Raise what went wrong, if anything did."""
        error = self._error()
        if error is not None:
            raise remains.added(error, self._remains)

    def _error(self) -> BaseException | None:
        told = (self.failures, self.job.world_size, os.uname().nodename, self.results, self.stacks)
        if self.overdue is not None:
            pids = {rank: process.pid for rank, process in self.processes.items()}
            return timeouts.build(
                self.overdue, *told, timeouts.places(self._plans, pids), self._found
            )
        if self.failures:
            return report.build(*told, self._found)
        return self._broken
