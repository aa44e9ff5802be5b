"""``max_restarts``: a launch of several attempts, each with its own supervisor, plan and ports.

Its holder uses it like one ``Launch``. The threads that wait for it drive it: when an attempt has
failed, one of them makes the next, and the others wait for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from xmp._os import log, signals
from xmp._os.skips import is_skip
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import Interrupt, SetGrace, Stop
from xmp._processes.messages.timeline import StartTimeline
from xmp._words.errors import ReplicaError, ReplicaTimeout, XmpError

from . import restart_rules
from .job import Call, Job
from .launch import ENDINGS, Launch
from .launch_registry import running_launches
from .outcome import Outcome
from .restart_rules import CANNOT_HELP, Fault
from .shared_reader import seconds_to
from .wakeups import Wakeups

__all__ = ["RestartingLaunch", "restart_words"]

_ANSWER_WAIT = 5.0  # seconds beside the grace, as for a single launch


class RestartingLaunch:
    """All attempts of one call of ``spawn``; ``make`` makes and starts one."""

    def __init__(self, call: Call, make: Callable[[Call], Launch]) -> None:
        self.finished = False
        self._call = call
        self._make = make
        self.grace = call.settings.grace
        """Seconds, for this attempt and those after it."""
        self._given: SetGrace | None = None
        """What a ``join`` has given instead, with patience."""
        self._past: list[tuple[str, Exception]] = []
        """Of each earlier attempt: a line that says when and how it failed, and its error."""
        self._paused_for = 0
        """Nanoseconds for which the earlier attempts were paused."""
        self._asked: Message | None = None
        """The request to end the launch."""
        self._failed: Exception | None = None
        """Why the next attempt could not be made."""
        self._fault: Fault | None = None
        """Of the attempt before."""
        self._resumes: float | None = None
        """When the next attempt is made, once that is settled."""
        self._hopeless = ""
        """Why none was made although there were some left."""
        self._watches = False
        self._wakeups = Wakeups()
        self._maker = 0
        """The thread that makes the next attempt, if one does."""
        try:
            self._attempt = make(call)
        except BaseException as error:
            if call.telling is not None:
                call.telling.finish(error)
            raise
        self._called = self._attempt.job.called
        running_launches.discard(self._attempt)
        running_launches.add(self)

    # --- as a Launch, of the present attempt ---------------------------------------------------

    @property
    def attempt(self) -> Launch:
        """The present attempt."""
        return self._attempt

    @property
    def job(self) -> Job:
        return self._attempt.job

    @property
    def outcome(self) -> Outcome:
        return self._attempt.outcome

    def start_timeline(self) -> StartTimeline:
        return self._attempt.start_timeline()

    def live_stacks(self) -> dict[int, str]:
        return self._attempt.live_stacks()

    def watch_alone(self) -> None:
        """Hear other hosts in this attempt and those after it; only ``wait`` makes these."""
        self._watches = True
        self._attempt.watch_alone()

    def reap(self) -> None:
        """Take in its messages, and so its end; only ``wait`` makes another attempt."""
        self._attempt.reap()

    def drop(self) -> None:
        self._attempt.drop()
        self.finished = True

    def ask(self, message: Message) -> None:
        """Send a request to the supervisor; after a request to end there is no further attempt."""
        if isinstance(message, SetGrace):
            self.grace, self._given = message.seconds, message
        elif isinstance(message, ENDINGS):
            self._asked = message
            self._wakeups.wake_all()  # one of them may wait for the time of the next attempt
        self._attempt.ask(message)

    # --- waiting -------------------------------------------------------------------------------

    def wait(
        self,
        timeout: float | None,
        owned: bool = False,
        enough: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for the last attempt, making those that are needed.

        False after ``timeout``, or when that was ``enough``.

        An exception ends the launch as it does a single one.
        """
        end = None if timeout is None else time.monotonic() + timeout
        try:
            with signals.deferred():
                while not self.finished:
                    attempt = self._attempt
                    ended = attempt.wait(seconds_to(end), owned, enough)
                    if not (ended and self._continue(attempt, end)):
                        return False
        except BaseException as error:
            if owned or isinstance(error, (KeyboardInterrupt, SystemExit)):
                with signals.deferred():
                    self.ask(Interrupt() if isinstance(error, KeyboardInterrupt) else Stop())
                    self.end_within(_ANSWER_WAIT + 2 * self.grace)
            raise
        return True

    def end_within(self, seconds: float) -> None:
        """Wait for the end that was asked for."""
        end = time.monotonic() + seconds
        while self._maker and (left := end - time.monotonic()) > 0:
            if self._maker == threading.get_ident():
                return  # called by what making it has called: it ends as soon as it is made
            self._wakeups.wait(lambda: not self._maker, left)
        self._attempt.end_within(max(0.0, end - time.monotonic()))
        self._finish()

    def raise_error(self) -> None:
        """Raise the error of the last attempt, if there is one, with those of the earlier ones."""
        error = self._failed or _error_of(self._attempt)
        if error is not None:
            if (self._past or self._hopeless) and not getattr(error, "history", ()):
                self._add_history(error)
            raise error

    def _add_history(self, error: Any) -> None:
        lines = [line for line, _ in self._past]
        if lines:
            lines.insert(0, f"Earlier attempts (max_restarts={self._call.settings.max_restarts}):")
        text = "\n".join([*lines, self._hopeless] if self._hopeless else lines)
        if isinstance(error, XmpError):
            error._add(text)
        elif isinstance(error, TypeError):
            error.args = (f"{error}\n\n{text}", *error.args[1:])
        error.history = tuple(past for _, past in self._past)

    # --- from one attempt to the next ----------------------------------------------------------

    def _continue(self, attempt: Launch, end: float | None) -> bool:
        """After an attempt, finish or make the next; False if the time is over before."""
        own = threading.get_ident()
        while self._maker:
            if self._maker == own:
                raise RuntimeError(
                    "join() was called while the same thread makes the next attempt, and would "
                    "wait for itself"
                )
            if end is not None and time.monotonic() >= end:
                return False
            self._wakeups.wait(lambda: not self._maker, seconds_to(end))
        with self._wakeups.lock:
            if self._maker or attempt is not self._attempt or self.finished:
                return True  # another thread was faster
            self._maker = own
        try:
            return self._judge(attempt, end)
        finally:
            self._maker = 0
            self._wakeups.wake_all()

    def _judge(self, attempt: Launch, end: float | None) -> bool:
        """Finish, or make the next attempt when it is time; False if ``end`` is before that."""
        error = _error_of(attempt)
        while True:
            refusal = "" if error is None else self._refusal(attempt, error)
            if refusal:
                log.debug("no restart: %s", refusal)
            if refusal or not isinstance(error, Exception):
                self._finish()
                return True
            if self._resumes is None:
                self._resumes = time.monotonic() + self._announced(attempt, error)
            if time.monotonic() >= self._resumes:
                break
            if end is not None and time.monotonic() >= end:
                return False
            until = self._resumes if end is None else min(self._resumes, end)
            self._wakeups.wait(lambda: self._asked is not None, seconds_to(until))
        self._restart(attempt, error)
        return True

    def _announced(self, attempt: Launch, error: Exception) -> float:
        """Say that another attempt follows; the seconds until then."""
        count, seconds = len(self._past), self._rest(error)
        when = f" in {seconds:g} s" if seconds else ""
        words = restart_words(error, attempt.outcome.failed_on)
        most = self._call.settings.max_restarts
        log.warning("restart %d of %d%s: %s", count + 1, most, when, words)
        return seconds

    def _restart(self, attempt: Launch, error: Exception) -> None:
        past, paused_for = self._past, self._paused_for
        self._resumes, self._fault = None, _fault_of(attempt, error)
        self._past = [*past, self._described(attempt, error)]
        self._paused_for += attempt.deadlines.paused_for
        try:
            self._attempt = self._make(self._next_call())
            running_launches.discard(self._attempt)
            if self._watches:
                self._attempt.watch_alone()
        except BaseException as failed:
            if signals.from_handler(failed) or not isinstance(failed, Exception):
                self._past, self._paused_for = past, paused_for  # there is no attempt after it
                raise
            self._failed = failed
            self._finish()
        for request in (self._given, self._asked):  # before it was made, or while
            if request is not None:
                self._attempt.ask(request)

    def _next_call(self) -> Call:
        # `timeout` counts for all attempts together, the other limits for each.
        limits = self._call.settings.limits
        limits = limits and replace(limits, first=self._called + self._paused_for)
        count = len(self._past)
        return self._call.using(restart_count=count, limits=limits, grace=self.grace)

    def _refusal(self, attempt: Launch, error: BaseException) -> str:
        """Why no attempt follows; empty if one does."""
        if self._asked is not None or attempt.asked_to_end:
            return "the program or its user has ended the launch"
        if len(self._past) >= self._call.settings.max_restarts:
            return f"max_restarts={self._call.settings.max_restarts} are made"
        total = self._call.settings.limits.total if self._call.settings.limits else None
        paused_for = self._paused_for + attempt.deadlines.paused_for
        if total is not None and time.monotonic_ns() >= self._called + paused_for + total:
            return "timeout= is over"
        if not attempt.may_mend(error):
            return "the next attempt would fail in the same way"
        self._hopeless = CANNOT_HELP if self._has_failed_so_before(attempt, error) else ""
        if not self._hopeless and total is not None and attempt.others is None:
            self._hopeless = self._out_of_time(error, self._called + paused_for + total, total)
        return self._hopeless

    def _out_of_time(self, error: BaseException, end: int, total: int) -> str:
        """Say that ``timeout`` is over before the next attempt would begin; empty if it is not.

        For a launcher that decides alone: the failure that says how long to wait is one host's.
        """
        rest = self._rest(error)
        if self._resumes is not None or time.monotonic_ns() + rest * 1e9 < end:
            return ""
        return f"not restarted: timeout={total / 1e9:g} is over before that, in {rest:g} s"

    def _rest(self, error: BaseException) -> float:
        """Return the seconds before the next attempt."""
        cause = _cause(error)
        return 0.0 if cause is None else restart_rules.rest(cause, len(self._past))

    def _has_failed_so_before(self, attempt: Launch, error: BaseException) -> bool:
        """Whether this attempt has failed as the one before, at once.

        The launchers of several hosts must decide alike, and only one of them has the failure.
        """
        alone = attempt.others is None
        return alone and self._fault is not None and _fault_of(attempt, error) == self._fault

    def _described(self, attempt: Launch, error: Exception) -> tuple[str, Exception]:
        """When and how it failed, without results: they may be large, and only the last count."""
        lasted = (time.monotonic_ns() - attempt.job.called) / 1e9
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        words = restart_words(error, attempt.outcome.failed_on)
        line = f"  {len(self._past) + 1}: {when}, after {lasted:.1f} s: {words}"
        if isinstance(error, ReplicaError):
            error.results = {}
        return line, error

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            running_launches.discard(self)
            if self._attempt.others is not None:
                self._attempt.others.leave()
            if self._call.telling is not None:
                self._call.telling.finish(self._failed or _error_of(self._attempt))


def _error_of(attempt: Launch) -> BaseException | None:
    try:
        attempt.raise_error()
    except BaseException as error:
        if isinstance(error, Exception) or is_skip(error):
            return error
        raise
    return None


def _cause(error: BaseException) -> Any:
    """The failure that a replica's error is about; None of other errors."""
    one = isinstance(error, ReplicaError) and not isinstance(error, ReplicaTimeout)
    return error.failures[0] if one and error.failures else None  # type: ignore[attr-defined]


def _fault_of(attempt: Launch, error: BaseException) -> Fault | None:
    cause = _cause(error)
    returned = bool(getattr(error, "results", ()))
    return cause and restart_rules.fault_of(cause, attempt.job.called, returned)


def restart_words(error: Exception, where: str = "") -> str:
    """One line: which rank failed, on which of several hosts, and how."""
    if isinstance(error, ReplicaError) and error.failures and not isinstance(error, ReplicaTimeout):
        on = f" on {where}" if where else ""
        return f"rank {error.rank}{on} {error.failures[0].what}"
    return f"{error}".partition("\n\n")[0].replace("\n", " ")
