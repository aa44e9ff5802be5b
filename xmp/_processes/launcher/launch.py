"""The one loop of a launch: take in messages, wait, end in order; of one host, or of many.

What differs is what is at the other ends of its links (``link``): the supervisor of this machine
(``supervised``), or the agents of several hosts (``_hosts/engines/hosts_launch``). They get the
requests of ``ask`` and ``order``; what they report goes into one ``Outcome``.

Why it is as it is:

- The user may stop waiting (``join(timeout=...)``), wait in several threads, or never wait. So
  nothing depends on one thread: whichever waits reads for all (``SharedReader``).
- Handlers of the program run where xmp waits, and may raise. An exception that leaves a wait after
  which nothing else could end the launch ends the replicas first, in order: SIGINT or SIGTERM,
  ``grace``, SIGKILL. A second Ctrl-C kills at once; any other exception meanwhile, as of an alarm
  that repeats, does not shorten the grace.
- A supervisor or an agent may be stopped or hang: each end has its time, and then a kill.
"""

from __future__ import annotations

import functools
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from xmp._os import log, signals
from xmp._os.log import say
from xmp._processes.messages import launch as messages
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.launch import Interrupt, Kill, Preempt, SetGrace, Stop
from xmp._processes.messages.timeline import StartTimeline
from xmp._processes.report.stack_texts import ranks
from xmp._processes.system import linux
from xmp._processes.terminal.console import in_notebook, signals_of_the_user
from xmp._processes.terminal.lender import TerminalLender
from xmp._processes.terminal.progress import Progress
from xmp._rules import ending_rules as ending
from xmp._rules.restarts import may_mend
from xmp._words.errors import XmpError

from .deadlines import Deadlines, soonest
from .events import NullEvents
from .job import Job
from .launch_registry import preempt_all, running_launches
from .link import Link
from .outcome import Outcome
from .preemption import Sigterm
from .replica_process import ReplicaProcess, Reports
from .shared_reader import SharedReader, seconds_to

__all__ = ["ENDINGS", "Launch"]

ENDINGS = (Interrupt, Stop, Kill, Preempt)
"""The requests after which no attempt follows."""


class Launch(ABC):
    """One launch, from its order to the last report."""

    def __init__(self, job: Job, lends: bool) -> None:
        """``lends``: whether a replica may have the terminal of this process."""
        self.job = job
        self.grace = job.settings.grace
        """Seconds; a ``join`` may have given others than the job has."""
        self.patience = 0.0
        """Seconds that a ``join`` leaves the replicas to end by themselves after a failure."""
        self.outcome = Outcome(job, Reports(self))
        self.links: Sequence[Link] = ()
        """The links over which more may come."""
        self.finished = False
        self.asked_to_end = False
        self.sigterm = Sigterm()
        self.events = job.telling or NullEvents()
        self.progress = Progress(job.host.replicas, job.called, job.progress)
        self.deadlines = limits = Deadlines(job, self.progress)
        self.lender = TerminalLender(self.ask, limits.pause, limits.resume, for_driver=not lends)
        self._reader = SharedReader(self._readable, self._read)
        self._first_phase = "starting"
        """What a replica does first: this, or "joining" the others."""

    # --- the other side ------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Start the replicas. Return when all exist, or raise what kept them from being made."""

    @abstractmethod
    def _doing(self) -> str:
        """Say what a launch that has no replicas yet waits for."""

    @abstractmethod
    def _next_look(self) -> float | None:
        """Return the seconds after which ``_look`` has something to do."""

    @abstractmethod
    def _look(self) -> None:
        """Do what is due: kill what has not ended in time."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Release what the launch holds, after its last message."""

    @abstractmethod
    def _forget(self) -> str:
        """Close what a forked child has inherited. Return why it cannot join the launch."""

    @abstractmethod
    def live_stacks(self) -> dict[int, str]:
        """Return the current stacks of all live replicas, by rank."""

    @abstractmethod
    def print_stacks(self) -> None:
        """Ask for the stacks of all live replicas, to print them when they arrive."""

    # --- messages ------------------------------------------------------------------------------

    def ask(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send the user's request; do nothing if the launch has ended."""
        self.asked_to_end = self.asked_to_end or isinstance(message, ENDINGS)
        if isinstance(message, SetGrace):
            self.grace = self.patience = message.seconds
        elif isinstance(message, Preempt):
            self.sigterm.came()
        self.order(message, descriptors)

    def order(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a request that the user has not made."""
        if not self.finished:
            self.progress.asked(message)
            self.deadlines.asked(message)
            for link in self.links:
                with suppress(Closed):  # what is read next says why
                    link.send(message, descriptors)

    def _readable(self, timeout: float | None) -> bool:
        """Return whether a message has come within that time."""
        if self.finished:
            return False
        if len(self.links) == 1:
            return self.links[0].readable(timeout)
        return linux.any_ready([link.fileno() for link in self.links], select.POLLIN, timeout)

    def _read(self) -> bool:
        """Take in one message of each link that has one; return False after the last one."""
        for link in self.links:
            if not self.finished:
                self._read_from(link)
        return not self.finished

    def _read_from(self, link: Link) -> None:
        try:
            message, descriptors = link.recv(0)
        except TimeoutError:
            pass
        except Closed:
            self._lost(link)
        else:
            self._taken(link, message, descriptors)

    def _taken(self, link: Link, message: Message, descriptors: list[int]) -> None:
        """Take in what has come over a link."""
        if self.job.relay is not None:
            self.job.relay.take(message, descriptors)
        self._report(message, descriptors)

    def _lost(self, link: Link) -> None:
        """Take in the end of a link over which no last message has come."""
        self.outcome.supervisor_lost(link.how_it_ended())
        self.finish()

    def _over(self, link: Link) -> None:
        """Read no more from a link: its last message has come."""
        self.links = [each for each in self.links if each is not link]
        if not self.links:
            self._none_left()

    def _none_left(self) -> None:
        """Finish, if nothing else is to come: no process is left."""
        self.finish()

    def _kill(self) -> None:
        """Kill what does not answer."""
        for link in self.links:
            link.kill()

    @property
    def processes(self) -> dict[int, ReplicaProcess]:
        """The replicas' processes by rank; empty until all exist."""
        return self.outcome.processes

    def _report(self, message: Message, files: list[int]) -> None:
        """Take in what the other side reports, with its descriptors.

        Raises TypeError for a message that it never sends.
        """
        outcome, progress = self.outcome, self.progress
        if isinstance(message, messages.ReplicasStarted):
            outcome.started(message)
            for rank, _pid, _at in message.replicas:
                progress.reached(rank, self._first_phase)
        elif isinstance(message, messages.ReplicaPhase):
            progress.reached(*message)
        elif isinstance(message, messages.ReplicaEntered):
            outcome.entered(message.rank, message.at)
            progress.reached(message.rank, "running")
        elif isinstance(message, messages.ReplicaReturned):
            outcome.returned(message, files)
        elif isinstance(message, messages.ReplicaEnded):
            outcome.ended(message)
            progress.reached(message.rank, "failed" if message.exit_code else "done")
        elif isinstance(message, messages.Events):
            self.events.add(message.records)
        else:
            raise TypeError(f"unexpected message {type(message).__name__}")

    # --- waiting -------------------------------------------------------------------------------

    def take_in(self, until: Callable[[], bool], seconds: float) -> None:
        """Take in messages until then, the last one, or for so long."""
        self._reader.until(lambda: until() or self.finished, seconds)

    def reap(self) -> None:
        """Take in the messages that have arrived, unless another thread does."""
        self._reader.take_in()

    def watch_alone(self) -> None:
        """Hear other hosts while the program does something else than wait for this launch."""
        if self.job.hosts is not None and not self.finished:
            watch = functools.partial(self._reader.until, lambda: self.finished, None)
            threading.Thread(target=watch, name="xmp-hosts", daemon=True).start()

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
        # Twice: a handler may also raise when the waiting is over, and the program has its handlers
        # back.
        with (
            self._ends_with_exceptions(owned),
            signals.deferred(),
            signals_of_the_user(self.lender.by_signal, self.print_stacks, preempt_all),
            self._ends_with_exceptions(owned),
        ):
            return self._wait_for_end(timeout, enough)

    def _wait_for_end(self, timeout: float | None, enough: Callable[[], bool]) -> bool:
        end = None if timeout is None else time.monotonic() + timeout

        def over() -> bool:
            return self.finished or enough()

        while True:
            look = self.lender.look
            left = None if look else seconds_to(end)
            wait = soonest(left, look, self.progress.next(), self._next_look())
            if self._reader.until(lambda: over() or self.lender.pending, wait):
                if self.lender.settle() or not over():
                    continue  # of several threads or launches one lends, and the others wait on
                if self.finished:
                    self.sigterm.carry_out(self.outcome)
                return self.finished
            if left == 0:
                return False
            self.progress.glance(self._doing)
            self._look()

    def end_within(self, seconds: float) -> None:
        """Wait for the end that was asked for; kill what does not answer."""
        if not self._reader.until(lambda: self.finished, seconds):
            with signals.blocked():
                self._kill()
                self._reader.until(lambda: self.finished, None)

    # --- ending --------------------------------------------------------------------------------

    @contextmanager
    def _ends_with_exceptions(self, owned: bool) -> Iterator[None]:
        """End the launch in order when an exception leaves the block that waits for it.

        Where something else may wait for it again, only KeyboardInterrupt and SystemExit end it.
        """
        try:
            yield
        except BaseException as error:
            if ending.ends_the_launch(error, owned) and not self.finished:
                with signals.deferred():
                    self.outcome.ended_by = f"{type(error).__name__} was raised in the launcher"
                    self._end_in_order(error)
                    self.sigterm.carry_out(self.outcome)
            raise

    def _end_in_order(self, why: BaseException) -> None:
        """End the replicas, and say in the exception of a Ctrl-C where they were."""
        try:
            self._end_because(why)
        except BaseException as error:
            self.outcome.say_where(error)
            raise
        self.outcome.say_where(why)

    def _end_because(self, why: BaseException) -> None:
        """End the replicas: SIGINT or SIGTERM, grace, SIGKILL; at once after another Ctrl-C.

        Any other exception meanwhile is printed once: the caller gets ``why``.
        """
        rules = ending.EndingRules(time.monotonic_ns(), int(self.grace * 1e9), type(why))
        self.ask(Interrupt() if isinstance(why, KeyboardInterrupt) else Stop())
        while not self.finished:
            try:
                left = (rules.until - time.monotonic_ns()) / 1e9
                if not self._reader.until(lambda: self.finished, max(0.0, left)):
                    action = rules.feed(ending.Waited(time.monotonic_ns()))
                    if action == ending.SAY:
                        self._say_what_it_waits_for(why)
                    elif action == ending.KILL:
                        self.end_within(0)
            except BaseException as error:
                action = rules.feed(ending.Raised(time.monotonic_ns(), type(error)))
                if action == ending.KILL:
                    with signals.blocked():
                        self.ask(Kill())
                        self.end_within(ending.ANSWER_WAIT / 1e9)
                if action in (ending.KILL, ending.RAISE):
                    raise
                if action == ending.NOTE:
                    first = type(why).__name__
                    log.warning(f"{error!r} was raised while xmp ended the launch after {first}")

    def _say_what_it_waits_for(self, why: BaseException) -> None:
        processes = self.outcome.processes.values()
        left = [process.rank for process in processes if process.reported is None]
        if left:
            again = isinstance(why, KeyboardInterrupt)
            key = "interrupting" if in_notebook() else "Ctrl-C"
            rest = f"; {key} again kills them at once" if again else ""
            say(f"xmp: waiting for {ranks(left)} to end, {self.grace:g} s at most (grace=){rest}")

    def finish(self) -> None:
        """Clean up after the last message; signal handlers are ``blocked``."""
        if not self.finished:
            self._close()
            self._clean_up()

    def _close(self) -> None:
        """Take nothing in any more."""
        self.finished = True
        self.progress.close()
        running_launches.discard(self)
        # No reference cycle may keep the results, which may be large, until the next collection.
        self.lender.end()
        self._reader.close()

    def leave(self) -> None:  # noqa: B027
        """Have replicas end that wait for further calls: those of a gang."""

    def leave_hosts(self) -> None:
        """Say to the other hosts that there is no further attempt."""
        if self.job.hosts is not None:
            self.job.hosts.leave()

    def drop(self) -> None:
        """Forget the launch, in a forked child of the launcher: it belongs to the parent."""
        self.finished = True
        self.progress.drop()
        self.outcome.broken = XmpError(self._forget())
        self.events.drop()

    # --- questions -----------------------------------------------------------------------------

    @property
    def attempt(self) -> Launch:
        """The launch, as one of several attempts has the present one."""
        return self

    def start_timeline(self) -> StartTimeline:
        """Return how long each part of the start took."""
        return self.outcome.start_timeline(())

    def raise_error(self) -> None:
        """Raise the error that the launch has ended with, if there is one."""
        self.outcome.raise_error()

    def may_mend(self, error: BaseException) -> bool:
        """Return whether another attempt may succeed, after this error."""
        elsewhere = self.outcome.elsewhere
        # All hosts of a launch must decide alike, and so by the one verdict.
        return may_mend(self.outcome, error) if elsewhere is None else not elsewhere.final
