"""``max_restarts``: a launch of several attempts, each with its own supervisor, plan and ports.

Its holder uses it like one ``Launch``. The threads that wait for it drive it: when an attempt has
failed, one of them makes the next, and the others wait for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp import _log
from xmp._errors import ReplicaError, ReplicaTimeout, XmpError
from xmp._limits import TOTAL
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import Interrupt, SetGrace, Stop
from xmp._processes.messages.order import Failure
from xmp._processes.messages.timeline import StartTimeline
from xmp._types import Limits

from .job import Job
from .launch import Launch
from .launch_registry import running_launches
from .outcome import Outcome

if TYPE_CHECKING:
    from .events import EventStream

__all__ = ["Again", "RestartingLaunch"]

_ANSWER_WAIT = 5.0  # seconds beside the grace, as for a single launch
Again = Callable[[int, "Limits | None", float], Launch]
"""Makes and starts an attempt; takes the number of attempts before it, its limits, its grace."""


class RestartingLaunch:
    """All attempts of one call of ``spawn``."""

    def __init__(
        self,
        again: Again,
        most: int,
        limits: Limits | None,
        grace: float,
        events: EventStream | None,
    ) -> None:
        self.finished = False
        self._again = again
        self._most = most
        self._limits = limits
        self.grace = grace
        """Seconds, for this attempt and those after it."""
        self._past: list[tuple[str, Exception]] = []
        """Of each earlier attempt: a line that says when and how it failed, and its error."""
        self._paused_for = 0
        """Nanoseconds for which the earlier attempts were paused."""
        self._asked: Message | None = None
        """The request to end the launch."""
        self._failed: Exception | None = None
        """Why the next attempt could not be made."""
        self._changed = threading.Condition()
        self._busy = False
        """Whether a thread makes the next attempt."""
        self._events = events
        try:
            self._attempt = again(0, limits, grace)
        except BaseException as error:
            if events is not None:
                events.finish(error)
            raise
        self._called = self._attempt.job.called
        running_launches.discard(self._attempt)
        running_launches.add(self)

    # --- the present attempt -------------------------------------------------------------------

    @property
    def job(self) -> Job:
        """What was launched."""
        return self._attempt.job

    @property
    def outcome(self) -> Outcome:
        """What it has come to."""
        return self._attempt.outcome

    def start_timeline(self) -> StartTimeline:
        """How long each part of its start took."""
        return self._attempt.start_timeline()

    def live_stacks(self) -> dict[int, str]:
        """The current stacks of its live replicas, by rank."""
        return self._attempt.live_stacks()

    def reap(self) -> None:
        """Take in its messages, and so its end; only ``wait`` makes another attempt."""
        self._attempt.reap()

    def drop(self) -> None:
        """Forget the launch, in a forked child of the launcher: it belongs to the parent."""
        self._attempt.drop()
        self.finished = True

    def ask(self, message: Message) -> None:
        """Send a request to the supervisor; after a request to end there is no further attempt."""
        if isinstance(message, SetGrace):
            self.grace = message.seconds
        else:
            self._asked = message
        self._attempt.ask(message)

    # --- waiting -------------------------------------------------------------------------------

    def wait(self, timeout: float | None) -> bool:
        """Wait for the last attempt, making those that are needed; False after ``timeout``."""
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while not self.finished:
                attempt = self._attempt
                if not (attempt.wait(_left(end)) and self._continue(attempt, end)):
                    return False
        except (KeyboardInterrupt, SystemExit) as asked:
            self.ask(Stop() if isinstance(asked, SystemExit) else Interrupt())
            self.end_within(_ANSWER_WAIT + 2 * self.grace)
            raise
        return True

    def end_within(self, seconds: float) -> None:
        """Wait for the end that was asked for."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._busy and self._changed.wait(_left(end)):
                pass
        self._attempt.end_within(max(0.0, end - time.monotonic()))
        self._finish()

    def raise_error(self) -> None:
        """Raise the error of the last attempt, if there is one, with those of the earlier ones."""
        error = self._failed or _error_of(self._attempt)
        if error is None:
            return
        if self._past and not getattr(error, "history", ()):
            self._add_history(error)
        raise error

    def _add_history(self, error: Any) -> None:
        earlier = "\n".join(line for line, _ in self._past)
        if isinstance(error, (XmpError, TypeError)):
            text = f"{error}\n\nEarlier attempts (max_restarts={self._most}):\n{earlier}"
            error.args = (text, *error.args[1:])
        error.history = tuple(past for _, past in self._past)

    # --- from one attempt to the next ----------------------------------------------------------

    def _continue(self, attempt: Launch, end: float | None) -> bool:
        """After an attempt, finish or make the next; False if the time is over before."""
        mine = False
        try:
            with self._changed:
                while self._busy:
                    if not self._changed.wait(_left(end)):
                        return False
                if attempt is not self._attempt or self.finished:
                    return True
                mine = self._busy = True
            self._judge(attempt)
        finally:
            if mine:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
        return True

    def _judge(self, attempt: Launch) -> None:
        error = _error_of(attempt)
        refusal = "" if error is None else self._refusal(attempt, error)
        if refusal:
            _log.debug("no restart: %s", refusal)
        if error is None or refusal:
            self._finish()
            return
        self._note(attempt, error)
        _log.warning("restart %d of %d: %s", len(self._past), self._most, _words(error))
        try:
            self._attempt = self._again(len(self._past), self._limits_left(), self.grace)
            running_launches.discard(self._attempt)
        except Exception as failed:
            self._failed = failed
            self._finish()
        except BaseException:
            self._past.pop()  # there is no attempt after it
            raise
        if self._asked is not None:  # while it was made
            self._attempt.ask(self._asked)

    def _refusal(self, attempt: Launch, error: Exception) -> str:
        """Why no attempt follows; empty if one does."""
        if self._asked is not None or attempt.asked_to_end:
            return "the program or its user has ended the launch"
        if len(self._past) >= self._most:
            return f"max_restarts={self._most} are made"
        total = self._limits.total if self._limits else None
        if total is not None and time.monotonic_ns() >= self._first(attempt) + total:
            return "timeout= is over"
        return "" if _helps(attempt, error) else "the next attempt would fail in the same way"

    def _note(self, attempt: Launch, error: Exception) -> None:
        """Keep how it failed, without results: they may be large, and only the last count."""
        lasted = (time.monotonic_ns() - attempt.job.called) / 1e9
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        line = f"  {len(self._past) + 1}: {when}, after {lasted:.1f} s: {_words(error)}"
        if isinstance(error, ReplicaError):
            error.results = {}
        self._past.append((line, error))
        self._paused_for += attempt.paused_for

    def _limits_left(self) -> Limits | None:
        """``timeout`` counts for all attempts together, the other limits for each."""
        return self._limits and replace(self._limits, first=self._called + self._paused_for)

    def _first(self, attempt: Launch) -> int:
        return self._called + self._paused_for + attempt.paused_for

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            running_launches.discard(self)
            if self._events is not None:
                self._events.finish(self._failed or _error_of(self._attempt))


def _left(end: float | None) -> float | None:
    return None if end is None else min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX)


def _error_of(attempt: Launch) -> Exception | None:
    try:
        attempt.raise_error()
    except Exception as error:
        return error
    return None


def _helps(attempt: Launch, error: Exception) -> bool:
    """Whether another attempt may succeed, and the user has not asked for this end."""
    outcome = attempt.outcome
    if isinstance(error, ReplicaTimeout):
        return outcome.overdue is not None and outcome.overdue.name != TOTAL
    if isinstance(error, ReplicaError):
        return not _is_final(outcome.failures[0])
    return outcome.orphaned


def _is_final(cause: Failure) -> bool:
    return cause.final or cause.kind == "interrupted" or cause.signal_name == "SIGINT"


def _words(error: Exception) -> str:
    """One line: which rank failed, and how."""
    if isinstance(error, ReplicaError) and not isinstance(error, ReplicaTimeout):
        return f"rank {error.rank} {error.failures[0].what}"
    return f"{error}".partition("\n\n")[0].replace("\n", " ")
