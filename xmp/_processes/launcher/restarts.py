"""``max_restarts``: a launch of several attempts, each with its own supervisor, plan and ports.

Its holder uses it like one ``Launch``. The threads that wait for it drive it: when an attempt has
failed, one of them makes the next, and the others wait for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

from xmp._os import log, signals
from xmp._os.skips import is_skip
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import Interrupt, SetGrace, Stop
from xmp._rules.ending_rules import ends_the_launch
from xmp._rules.restarts import FailedAttempt, RestartRules
from xmp._words.errors import ReplicaError, ReplicaFailure, ReplicaTimeout, XmpError

from .job import Call, Job
from .launch import ENDINGS, Launch
from .launch_registry import running_launches
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
        self._asked: Message | None = None
        """The request to end the launch."""
        self._failed: Exception | None = None
        """Why the next attempt could not be made."""
        self._watches = False
        self._wakeups = Wakeups()
        self._maker = 0
        """The thread that makes the next attempt, if one does."""
        try:
            self.attempt = make(call)
            """The present one."""
        except BaseException as error:
            if call.telling is not None:
                call.telling.finish(error)
            raise
        limits, most = call.settings.limits, call.settings.max_restarts
        total = limits.total if limits else None
        self._rules = RestartRules(most, total, self.attempt.job.called)
        running_launches.discard(self.attempt)
        running_launches.add(self)

    # --- as a Launch, of the present attempt ---------------------------------------------------

    @property
    def job(self) -> Job:
        return self.attempt.job

    def watch_alone(self) -> None:
        """Hear other hosts in this attempt and those after it; only ``wait`` makes these."""
        self._watches = True
        self.attempt.watch_alone()

    def reap(self) -> None:
        """Take in its messages, and so its end; only ``wait`` makes another attempt."""
        self.attempt.reap()

    def leave(self) -> None:
        """Do nothing: no gang restarts by itself."""

    def drop(self) -> None:
        self.attempt.drop()
        self.finished = True

    def ask(self, message: Message) -> None:
        """Send a request to the supervisor; after a request to end there is no further attempt."""
        if isinstance(message, SetGrace):
            self.grace, self._given = message.seconds, message
        elif isinstance(message, ENDINGS):
            self._asked = message
            self._wakeups.wake_all()  # one of them may wait for the time of the next attempt
        self.attempt.ask(message)

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
                    attempt = self.attempt
                    ended = attempt.wait(seconds_to(end), owned, enough)
                    if not (ended and self._continue(attempt, end)):
                        return False
        except BaseException as error:
            if ends_the_launch(error, owned):
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
        self.attempt.end_within(max(0.0, end - time.monotonic()))
        self._finish()

    def raise_error(self) -> None:
        """Raise the error of the last attempt, if there is one, with those of the earlier ones."""
        error = self._failed or self._attempt_error()
        if error is not None:
            if (self._past or self._rules.hopeless) and not getattr(error, "history", ()):
                self._add_history(error)
            raise error

    def _add_history(self, error: Any) -> None:
        lines = [line for line, _ in self._past]
        if lines:
            lines.insert(0, f"Earlier attempts (max_restarts={self._call.settings.max_restarts}):")
        hopeless = self._rules.hopeless
        text = "\n".join([*lines, hopeless] if hopeless else lines)
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
            if self._maker or attempt is not self.attempt or self.finished:
                return True  # another thread was faster
            self._maker = own
        try:
            return self._judge(end)
        finally:
            self._maker = 0
            self._wakeups.wake_all()

    def _judge(self, end: float | None) -> bool:
        """Finish, or make the next attempt when it is time; False if ``end`` is before that."""
        error, rules = self._attempt_error(), self._rules
        while True:
            failed = self._seen(error)
            refusal = "" if error is None else rules.refusal(failed, time.monotonic_ns())
            if refusal:
                log.debug("no restart: %s", refusal)
            if refusal or not isinstance(error, Exception):
                self._finish()
                return True
            begins = rules.begins
            if begins is None:
                self._announce(error, rules.pause(failed))
                begins = rules.settle(failed, time.monotonic_ns())
            if time.monotonic_ns() >= begins:
                break
            if end is not None and time.monotonic() >= end:
                return False
            until = begins / 1e9 if end is None else min(begins / 1e9, end)
            self._wakeups.wait(lambda: self._asked is not None, seconds_to(until))
        self._restart(error, failed)
        return True

    def _seen(self, error: BaseException | None) -> FailedAttempt:
        """Return what the rules have to know of the attempt."""
        attempt = self.attempt
        ended = self._asked is not None or attempt.asked_to_end
        return FailedAttempt(
            began=attempt.job.called,
            paused_for=attempt.deadlines.paused_for,
            ended_by_user=ended,
            mends=error is not None and not ended and attempt.may_mend(error),
            cause=_cause(error),
            returned=bool(getattr(error, "results", ())),
            alone=attempt.job.hosts is None,
        )

    def _announce(self, error: Exception, seconds: float) -> None:
        """Say that another attempt follows."""
        when = f" in {seconds:g} s" if seconds else ""
        words = restart_words(error, self.attempt.outcome.failed_on)
        most = self._call.settings.max_restarts
        log.warning("restart %d of %d%s: %s", len(self._past) + 1, most, when, words)

    def _restart(self, error: Exception, failed: FailedAttempt) -> None:
        self._rules.begins = None  # whatever comes of making it: another would be announced
        past, rules = self._past, copy(self._rules)
        self._past = [*past, self._described(error)]
        self._rules.restarted(failed)
        try:
            self.attempt = self._make(self._next_call())
            running_launches.discard(self.attempt)
            if self._watches:
                self.attempt.watch_alone()
        except BaseException as failure:
            if signals.from_handler(failure) or not isinstance(failure, Exception):
                self._past, self._rules = past, rules  # there is no attempt after it
                raise
            self._failed = failure
            self._finish()
        for request in (self._given, self._asked):  # before it was made, or while
            if request is not None:
                self.attempt.ask(request)

    def _next_call(self) -> Call:
        # `timeout` counts for all attempts together, the other limits for each.
        limits = self._call.settings.limits
        limits = limits and replace(limits, first=self._rules.first)
        count = len(self._past)
        return self._call.using(restart_count=count, limits=limits, grace=self.grace)

    def _described(self, error: Exception) -> tuple[str, Exception]:
        """When and how it failed, without results: they may be large, and only the last count."""
        lasted = (time.monotonic_ns() - self.attempt.job.called) / 1e9
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        words = restart_words(error, self.attempt.outcome.failed_on)
        line = f"  {len(self._past) + 1}: {when}, after {lasted:.1f} s: {words}"
        if isinstance(error, ReplicaError):
            error.results = {}
        return line, error

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            running_launches.discard(self)
            self.attempt.leave_hosts()
            if self._call.telling is not None:
                self._call.telling.finish(self._failed or self._attempt_error())

    def _attempt_error(self) -> BaseException | None:
        """Return the error that the present attempt has ended with."""
        try:
            self.attempt.raise_error()
        except BaseException as error:
            if isinstance(error, Exception) or is_skip(error):
                return error
            raise
        return None


def _cause(error: BaseException | None) -> ReplicaFailure | None:
    """Return the failure that a replica's error is about; None of other errors."""
    if not isinstance(error, ReplicaError) or isinstance(error, ReplicaTimeout):
        return None
    return error.failures[0] if error.failures else None


def restart_words(error: Exception, where: str = "") -> str:
    """One line: which rank failed, on which of several hosts, and how."""
    if isinstance(error, ReplicaError) and error.failures and not isinstance(error, ReplicaTimeout):
        on = f" on {where}" if where else ""
        return f"rank {error.rank}{on} {error.failures[0].what}"
    return f"{error}".partition("\n\n")[0].replace("\n", " ")
