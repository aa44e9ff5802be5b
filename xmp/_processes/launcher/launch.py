"""One launch, as the launcher runs it: start a supervisor, take in its messages, wait, clean up."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from xmp._os import log, signals
from xmp._os.log import say
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.launch import Interrupt, Kill, Preempt, SetGrace, Stop, TakeStacks
from xmp._processes.messages.timeline import StartTimeline, slow_start
from xmp._processes.report.stack_texts import living
from xmp._processes.terminal.lender import TerminalLender
from xmp._processes.terminal.progress import Progress
from xmp._rules.restarts import may_mend
from xmp._words.errors import XmpError

from . import ending, leftovers
from .deadlines import Deadlines, EndedElsewhere, soonest
from .events import NullEvents
from .handlers import supervisor_messages
from .job import Job
from .launch_registry import reap_finished, running_launches
from .other_hosts import OtherHosts
from .outcome import Outcome
from .preemption import Sigterm
from .replica_process import Reports
from .shared_reader import SharedReader, seconds_to
from .supervisor_link import SupervisorLink

__all__ = ["ENDINGS", "Launch"]

_ANSWER_WAIT = 5.0
_ENTRY_WAIT = 0.25
ENDINGS = (Interrupt, Stop, Kill, Preempt)
"""The requests after which no attempt follows."""


class Launch:
    """One launch, from the packed call to the last report."""

    _said_slow = False
    """Whether this program has been told of a start that took long: once is enough."""

    def __init__(self, job: Job, release: Callable[[], None]) -> None:
        self.job = job
        self.grace = job.settings.grace
        """Seconds; a ``join`` may have given others than the job has."""
        self.patience = 0.0
        """Seconds that a ``join`` leaves the replicas to end by themselves after a failure."""
        self.outcome = Outcome(job, Reports(self))
        self.others = OtherHosts(job.hosts, bool(job.settings.max_restarts)) if job.hosts else None
        self.finished = False
        self.asked_to_end = False
        self.sigterm = Sigterm()
        self.events = job.telling or NullEvents()
        self.progress = Progress(job.host.replicas, job.called, job.progress)
        self._at_end = ExitStack()
        self._at_end.callback(release)
        self.deadlines = Deadlines(job, self.progress)
        if self.others is not None:
            self.deadlines.ended_elsewhere = functools.partial(self.others.have_failed, self)
        self.link = SupervisorLink(job, self.deadlines, self._at_end.callback)
        limits = self.deadlines
        relayed = job.relay is not None
        self.lender = TerminalLender(self.ask, limits.pause, limits.resume, for_driver=relayed)
        self._reader = SharedReader(self._readable, self._read)
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
                ending.in_order(self, error)
            raise

    def _abandon(self, error: BaseException | None) -> None:
        """Undo a start that did not succeed."""
        ended = self.finished
        self.progress.close()
        self.link.end()
        self.finished = True
        if self.others is not None:
            self.others.over(self, error)
        self._at_end.close()
        if not ended:
            self.events.end(error)

    def watch_alone(self) -> None:
        """Hear other hosts while the program does something else than wait for this launch."""
        if self.others is not None and not self.finished:
            watch = functools.partial(self._reader.until, lambda: self.finished, None)
            threading.Thread(target=watch, name="xmp-hosts", daemon=True).start()

    # --- messages ------------------------------------------------------------------------------

    def ask(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send the user's request to the supervisor; does nothing if it has ended."""
        self.asked_to_end = self.asked_to_end or isinstance(message, ENDINGS)
        self.order(message, descriptors)
        if self.others is not None and isinstance(message, ENDINGS):
            self.others.asked(self, isinstance(message, Preempt))

    def order(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a request that the user has not made."""
        if isinstance(message, SetGrace):
            self.grace = self.patience = message.seconds
        elif isinstance(message, Preempt):
            self.sigterm.came(self.link.supervisor)
        if not self.finished:
            self.progress.asked(message)
            self.deadlines.asked(message)
            try:
                self.link.connection.send(message, list(descriptors))
            except Closed:
                pass  # the next message that is read says why

    def take_in(self, until: Callable[[], bool], seconds: float) -> None:
        """Take in messages until then, the last one, or for so long."""
        self._reader.until(lambda: until() or self.finished, seconds)

    def reap(self) -> None:
        """Take in the messages that have arrived, unless another thread does."""
        self._reader.take_in()

    def _readable(self, timeout: float | None) -> bool:
        if self.finished:
            return False
        if self.others is not None:
            return self.others.readable(self.link, timeout)
        return self.link.connection.readable(timeout)

    def _read(self) -> bool:
        """Take in one message; False after the last one."""
        if self.others is not None:
            self.others.hear(self)
            if self.finished or self.others.waiting or not self.link.connection.readable(0):
                return not self.finished
        if self.finished:
            return False
        try:
            message, descriptors = self.link.connection.recv()
        except Closed:
            self.outcome.supervisor_lost(self.link.how_it_ended())
            self.finish()
            return False
        if self.job.relay is not None:
            self.job.relay.take(message, descriptors)
        supervisor_messages.handle(message, self, descriptors)
        return not self.finished

    # --- waiting -------------------------------------------------------------------------------

    def wait(
        self,
        timeout: float | None,
        owned: bool = False,
        enough: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Take in messages until the end, until that is ``enough``, or for ``timeout`` seconds.

        True at the end of the launch.

        KeyboardInterrupt and SystemExit from a signal handler end the launch in order before they
        go on. If the launch is ``owned`` by this call, so that nothing else could end it, any
        exception does.
        """
        with ending.while_waiting(self, owned, self.lender.by_signal):
            return self._wait_for_end(timeout, enough)

    def _wait_for_end(self, timeout: float | None, enough: Callable[[], bool]) -> bool:
        end = None if timeout is None else time.monotonic() + timeout

        def over() -> bool:
            return self.finished or enough()

        while True:
            look = self.lender.look
            left = None if look else seconds_to(end)
            longest = self.grace + self.patience
            last = self.deadlines.left_to_supervisor(longest, self.link.is_stopped)
            wait = soonest(left, last, look, self.progress.next())
            if self._reader.until(lambda: over() or self.lender.pending, wait):
                if self.lender.settle() or not over():
                    continue  # of several threads or launches one lends, and the others wait on
                if self.finished:
                    self.sigterm.carry_out(self.outcome)
                return self.finished
            if left == 0:
                return False
            self.progress.glance(self.link.doing)
            if last is not None and last <= 0:
                self._end_overdue()

    def _end_overdue(self) -> None:
        """Kill a supervisor that did not end the launch in time."""
        codes = [process.reported for process in self.outcome.processes.values()]
        writes = None not in codes and not self.link.is_stopped()
        self.outcome.broken = self.deadlines.not_ended(self.link.supervisor, writes)
        self.end_within(0)

    def end_within(self, seconds: float) -> None:
        """Wait for the end that was asked for; kill a supervisor that does not answer."""
        if not self._reader.until(lambda: self.finished, seconds):
            with signals.blocked():
                self.link.kill()
                self._reader.until(lambda: self.finished, None)

    # --- ending --------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """End the launch, whose supervisor could not start it, with this error."""
        self.outcome.broken = error
        self.finish()

    def finish(self) -> None:
        """Clean up after the supervisor's last message; signal handlers are ``blocked``."""
        if self.finished:
            return
        self.finished = True
        outcome, start_method = self.outcome, self.link.start_method
        counts = len(outcome.results), len(outcome.failures)
        log.debug("launch over: %d results, %d failures", *counts)
        self.progress.close()
        running_launches.discard(self)
        # No reference cycle may keep the results, which may be large, until the next collection.
        self.lender.end()
        self._reader.close()
        self.link.end()
        outcome.leftovers = leftovers.after(outcome.processes.values(), start_method.key.rules)
        self._at_end.close()
        told = self.job.relay is not None or Launch._said_slow
        if not told and (line := slow_start(self.start_timeline(), self.job.settings.program)):
            Launch._said_slow = True
            log.warning(line)
        start_method.offer(outcome.imported)
        reap_finished()
        error = outcome.error() if self.job.telling or self.others else None
        if self.others is not None:
            self.others.over(self, error)
        if self.job.telling is not None:
            self.events.end(error)

    def drop(self) -> None:
        """Forget the launch, in a forked child of the launcher: it belongs to the parent."""
        self.finished = True
        self.progress.drop()
        launcher = self.link.order.call.state.pid
        self.outcome.broken = XmpError(f"only process {launcher}, which launched it, can join it")
        self.link.drop()
        self.events.drop()

    # --- questions -----------------------------------------------------------------------------

    def start_timeline(self) -> StartTimeline:
        """How long each part of the start took."""
        return self.outcome.start_timeline(self.link.start_method.imports())

    def may_mend(self, error: BaseException) -> bool:
        """Whether another attempt may succeed, after this error."""
        elsewhere = self.outcome.elsewhere
        # All hosts of a launch must decide alike, and so by the one verdict.
        return may_mend(self.outcome, error) if elsewhere is None else not elsewhere.final

    def raise_error(self) -> None:
        """Raise the error that the launch has ended with, if there is one."""
        self.outcome.raise_error()

    def live_stacks(self) -> dict[int, str]:
        """The current stacks of all live replicas, by rank."""
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

    def stacks_taken(self, stacks: dict[int, str]) -> None:
        """Take the supervisor's answer to either."""
        self._stacks = stacks
        if self._prints_stacks:
            self._prints_stacks = False
            say(living(stacks))
