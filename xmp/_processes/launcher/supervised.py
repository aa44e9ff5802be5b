"""A launch on this host: start a supervisor, take in its messages, clean up after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from xmp._inside.collectives import note_preemption
from xmp._os import log, signals
from xmp._os.log import say
from xmp._processes.messages import launch as messages
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import Preempt, TakeStacks
from xmp._processes.messages.order import Failure
from xmp._processes.messages.timeline import StartTimeline, slow_start
from xmp._processes.report import host_error
from xmp._processes.report.hang_texts import living
from xmp._processes.report.replica_error import not_loaded
from xmp._processes.system import processes
from xmp._rules import host_rules as hosts
from xmp._rules.restarts import may_mend
from xmp._rules.watch import is_victim
from xmp._words.errors import StartError, XmpError

from . import leftovers
from .deadlines import EndedElsewhere
from .job import Job
from .launch import ENDINGS, Launch
from .launch_registry import reap_finished, running_launches
from .other_hosts import OtherHosts
from .supervisor_link import SupervisorLink

__all__ = ["SupervisedLaunch"]

_ORDERS: dict[str, Callable[..., Message]] = {
    "progress": messages.ProgressElsewhere,
    "preempt": messages.PreemptElsewhere,
    "propose": messages.ProposedStep,
    "stacks": messages.TakeStacks,
    "stop": messages.Stop,
}
"""What the rules for a host order of its supervisor."""
_ANSWER_WAIT = 5.0
_ENTRY_WAIT = 0.25


class SupervisedLaunch(Launch):
    """One launch, from the packed call to the last report of its supervisor."""

    _said_slow = False
    """Whether this program has been told of a start that took long: once is enough."""

    def __init__(self, job: Job, release: Callable[[], None]) -> None:
        super().__init__(job, lends=job.relay is None)
        self.others: OtherHosts | None = None
        if job.hosts is not None:
            self.others = OtherHosts(job.hosts, bool(job.settings.max_restarts), bool(job.relay))
            self.deadlines.ended_elsewhere = self._has_ended_elsewhere
        self._at_end = ExitStack()
        self._at_end.callback(release)
        self.link = SupervisorLink(job, self.deadlines, self._at_end.callback)
        self.links = [self.link]
        self._stacks: dict[int, str] | None = None
        """The answer to ``live_stacks``."""
        self._prints_stacks = False

    # --- starting ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start supervisor and replicas; returns when every replica has been made.

        Raises TypeError for what cannot be packed and StartError for what does not start; leaves
        nothing behind then.
        """
        reap_finished()
        with signals.deferred():
            try:
                self.events.begin(self.job.called, self.job.plan, self.job.settings.restart_count)
                if self.job.relay is not None:
                    self.job.relay.begins()
                self.link.prepare()
                self.link.begin()
                self.outcome.begin()
                self._wait_for_start()
            except EndedElsewhere:
                with signals.blocked():
                    self._abandon(self.outcome.error())
                return  # on this host, too, that is the end of an attempt, which others may follow
            except BaseException as error:
                with signals.blocked():
                    self._abandon(error)
                raise
            if self.outcome.broken is not None:
                raise self.outcome.broken
            self.progress.hide()
            running_launches.add(self)

    def _wait_for_start(self) -> None:
        def started() -> bool:
            return bool(self.outcome.processes) or self.finished

        def starts(seconds: float | None) -> bool:
            if self._reader.until(started, seconds):
                return True
            self.link.replace_stopped()
            return False

        try:
            self.deadlines.wait(starts, self.link.doing, _ANSWER_WAIT)
        except (XmpError, EndedElsewhere):
            raise
        except BaseException as error:
            # A supervisor that is loading reads no messages: the lifeline ends it. But replicas
            # that have just reached the user's function must end in order.
            if self.link.open and self._reader.until(started, _ENTRY_WAIT):
                self._end_in_order(error)
            raise

    def _abandon(self, error: BaseException | None) -> None:
        """Undo a start that did not succeed."""
        ended = self.finished
        self._close()
        self.link.end()
        self._leave_attempt(error)
        self._at_end.close()
        if not ended:
            self.events.end(error)

    # --- messages ------------------------------------------------------------------------------

    def ask(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send the user's request to the supervisor, and tell other hosts if it ends the launch."""
        actions: list[hosts.HostAction] = []
        others = self.others
        # First: what the supervisor reports of it, another thread may read at once.
        if isinstance(message, ENDINGS) and others and not (self.finished and others.rules.waiting):
            asked = hosts.Asked(isinstance(message, Preempt), self.outcome.ended_by)
            actions = others.feed(asked)
        if isinstance(message, Preempt) and self.link.is_stopped():
            processes.kill(self.link.supervisor)  # it would never react
        super().ask(message, descriptors)
        self._act(actions)

    def _readable(self, timeout: float | None) -> bool:
        if self.others is None or self.finished:
            return super()._readable(timeout)
        return self.others.readable(self.links, timeout)

    def _read(self) -> bool:
        """Take in a message of the supervisor, and what other hosts say."""
        if self.others is not None:
            self._act(self.others.hear())
        return super()._read()

    def _report(self, message: Message, files: list[int]) -> None:
        if isinstance(message, messages.ReplicasStarted):
            self.link.has_started(message.supervisor)
            self._first_phase = self.link.order.first_phase
            pids = [pid for _rank, pid, _at in message.replicas]
            log.debug("supervisor %d has made the replicas %s", message.supervisor, pids)
            super()._report(message, files)
        elif isinstance(message, messages.StackTexts):
            self._stacks_taken(message)
        elif isinstance(message, messages.PreemptAnswer):
            self.sigterm.answered(message.agreed)
            self._tell_hosts(hosts.VoteAnswered(message.agreed))
        elif isinstance(message, messages.StepReached):
            self._tell_hosts(hosts.StepAnswered(*message))
        elif isinstance(message, messages.ProgressMade):
            if self.job.hosts is not None:
                self.job.hosts.advance()
        elif isinstance(message, messages.AtBreakpoint):
            self.progress.close()
            self.lender.at_breakpoint(message)
        elif isinstance(message, messages.DebuggerLeft):
            self.progress.close()
            self.lender.left(message)
        elif not isinstance(message, messages.WaitedLong):  # which only the driver answers
            self._report_failure(message, files)

    def _report_failure(self, message: Message, files: list[int]) -> None:
        """Take in why the launch fails or ends; else what every launch takes in."""
        if isinstance(message, messages.UnsafeToFork):
            self.link.begin_with_fresh_interpreters(message.culprits)
        elif isinstance(message, messages.LoadFailed):
            text, words, pickled = message
            self._fail(not_loaded(text, words, pickled if self.job.relay is None else None))
        elif isinstance(message, messages.CannotMake):
            self._fail(StartError(message.message))
        elif isinstance(message, messages.FailedFirst):
            if self.others is not None:
                error = self.outcome.first(message.failure)
                self._tell_hosts(self._described(error, message.failure))
        elif isinstance(message, messages.Done):
            self.outcome.done(message)
            self._over(self.link)
        else:
            super()._report(message, files)

    # --- other hosts ---------------------------------------------------------------------------

    def _tell_hosts(self, event: hosts.HostEvent | None) -> None:
        """Take an event into the rules for this host; do nothing in a launch on one host."""
        if self.others is not None and event is not None:
            self._act(self.others.feed(event))

    def _described(self, error: BaseException, first: Failure | None = None) -> hosts.Failed | None:
        """Describe a failure for the other hosts; None if they know of one already.

        ``first`` is the failure, while replicas still run.
        """
        if self.others is None or self.others.rules.has_reported:
            return None
        outcome = self.outcome
        cause = first or next(iter(outcome.failures), None)
        words = f"{cause.error_type}: {cause.message}\n{cause.stderr}" if cause else ""
        mends = may_mend(outcome, error, () if first is None else (first,))
        described = host_error.described(error, is_victim(words))
        return hosts.Failed(described, mends, isinstance(error, KeyboardInterrupt))

    def _none_left(self) -> None:
        """Finish, or wait for the other hosts: no process is left here."""
        if self.others is None:
            super()._none_left()
            return
        error, outcome = self.outcome.error(), self.outcome
        failed = None if error is None else self._described(error)
        self._tell_hosts(hosts.NoneLeft(failed, outcome.complete(outcome.processes)))

    def _leave_attempt(self, error: BaseException | None) -> None:
        self._tell_hosts(hosts.Left(None if error is None else self._described(error)))

    def _has_ended_elsewhere(self) -> bool:
        """Return whether another host has ended the launch, while this one has no replicas."""
        if self.outcome.processes or self.others is None:
            return False
        self._act(self.others.hear_before_start())
        return self.others.rules.stopped

    def _act(self, actions: Sequence[hosts.HostAction]) -> None:
        for action in actions:
            if action.to == "replicas":
                self.order(_ORDERS[action.name](*action.args))
            elif action == hosts.STAYS:
                self.sigterm.answered(True)
            elif action == hosts.NOTE_PREEMPTION:
                note_preemption()
            elif action == hosts.FINISH:
                with signals.blocked():
                    self.finish()
            else:
                (self.outcome.elsewhere,) = action.args

    # --- waiting -------------------------------------------------------------------------------

    def _doing(self) -> str:
        return self.link.doing()

    def _next_look(self) -> float | None:
        """Return the seconds until the supervisor must have ended a launch with a ``timeout``."""
        longest = self.grace + self.patience
        return self.deadlines.left_to_supervisor(longest, self.link.is_stopped)

    def _look(self) -> None:
        """Kill a supervisor that did not end the launch in time."""
        left = self._next_look()
        if left is not None and left <= 0:
            codes = [process.reported for process in self.outcome.processes.values()]
            writes = None not in codes and not self.link.is_stopped()
            self.outcome.broken = self.deadlines.not_ended(self.link.supervisor, writes)
            self.end_within(0)

    # --- ending --------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """End the launch, whose supervisor could not start it, with this error."""
        self.outcome.broken = error
        self.finish()

    def _clean_up(self) -> None:
        outcome, start_method = self.outcome, self.link.start_method
        counts = len(outcome.results), len(outcome.failures)
        log.debug("launch over: %d results, %d failures", *counts)
        self.link.end()
        outcome.leftovers = leftovers.after(outcome.processes.values(), start_method.key.rules)
        self._at_end.close()
        self._say_slow_start()
        start_method.offer(outcome.imported)
        reap_finished()
        error = outcome.error() if self.job.telling or self.others else None
        self._leave_attempt(error)
        if self.job.telling is not None:
            self.events.end(error)

    def _say_slow_start(self) -> None:
        told = self.job.relay is not None or SupervisedLaunch._said_slow
        if not told and (line := slow_start(self.start_timeline(), self.job.settings.program)):
            SupervisedLaunch._said_slow = True
            log.warning(line)

    def _forget(self) -> str:
        self.link.drop()
        return f"only process {self.link.order.call.state.pid}, which launched it, can join it"

    # --- questions -----------------------------------------------------------------------------

    def start_timeline(self) -> StartTimeline:
        """Return how long each part of the start took."""
        return self.outcome.start_timeline(self.link.start_method.imports())

    def live_stacks(self) -> dict[int, str]:
        """Return the current stacks of all live replicas, by rank."""
        self._stacks = None
        self.ask(TakeStacks())
        if self._reader.until(lambda: self._stacks is not None or self.finished, _ANSWER_WAIT):
            return self._stacks or {}
        from xmp._processes.system import stacks_by_pid  # only for a supervisor that hangs

        return stacks_by_pid.of_launch(self.link.supervisor)

    def print_stacks(self) -> None:
        """Ask for the stacks of all live replicas, to print them when they arrive."""
        self._prints_stacks = True
        self.ask(TakeStacks())

    def _stacks_taken(self, answer: messages.StackTexts) -> None:
        """Take the supervisor's answer to either."""
        self._stacks = answer.by_rank
        if self._prints_stacks:
            self._prints_stacks = False
            say(living(*answer))
