"""``max_restarts``: a launch of several attempts, each with supervisor, plan and ports of its own.

Looks like one ``Launch`` to whoever holds it. Whoever waits drives it: when an attempt has failed,
one of the waiting threads makes the next, and the others wait for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp._errors import ReplicaError, ReplicaTimeout, XmpError
from xmp._limits import TOTAL
from xmp._types import Limits

from .account import StartAccount
from .job import Job, ReplicaProcess
from .launch import Launch
from .living import live
from .order import Failure
from .outcome import UNSENDABLE
from .terminal import say

if TYPE_CHECKING:
    from .telling import Telling

__all__ = ["Again", "Restarting"]

_PATIENCE = 5.0  # seconds beside the grace, as for a single launch
Again = Callable[[int, "Limits | None", float], Launch]
"""Makes and starts an attempt: how many there were before, its limits, its grace."""


class Restarting:
    """All attempts of one call of ``spawn``."""

    def __init__(
        self, again: Again, most: int, limits: Limits | None, grace: float, telling: Telling | None
    ) -> None:
        self.finished = False
        self._again = again
        self._most = most
        self._limits = limits
        self.grace = grace
        """Seconds, for this attempt and those after it."""
        self._past: list[tuple[str, Exception]] = []
        """Of each attempt before: when it failed and how, and its error."""
        self._lost = 0
        """Nanoseconds for which the user has stopped the attempts before."""
        self._asked = ""
        """How somebody has asked to end it."""
        self._failed: Exception | None = None
        """Why the next attempt could not be made."""
        self._changed = threading.Condition()
        self._busy = False
        self._telling = telling
        try:
            self._attempt = again(0, limits, grace)
        except BaseException as error:
            if telling is not None:
                telling.finish(error)
            raise
        self._called = self._attempt.job.called
        live.discard(self._attempt)
        live.add(self)

    # --- the present attempt -------------------------------------------------------------------

    @property
    def job(self) -> Job:
        """What the present attempt is."""
        return self._attempt.job

    @property
    def processes(self) -> dict[int, ReplicaProcess]:
        """Its replicas."""
        return self._attempt.processes

    @property
    def results(self) -> dict[int, Any]:
        """What they have returned."""
        return self._attempt.results

    def account(self) -> StartAccount:
        """Where the time of its start went."""
        return self._attempt.account()

    def live_stacks(self) -> dict[int, str]:
        """The stacks of its living replicas."""
        return self._attempt.live_stacks()

    def put_away(self) -> None:
        """Take in that it has ended, if it has; that alone begins no other."""
        self._attempt.put_away()

    def drop(self) -> None:
        """In a forked child of the launcher: this launch is not ours."""
        self._attempt.drop()
        self.finished = True

    def ask(self, name: str, *rest: Any) -> None:
        """Ask the supervisor for something; after an end that was asked for nothing begins anew."""
        if name == "grace":
            self.grace = rest[0]
        else:
            self._asked = name
        self._attempt.ask(name, *rest)

    # --- waiting -------------------------------------------------------------------------------

    def wait(self, timeout: float | None) -> bool:
        """Wait for the last attempt, making those that are needed; False when the time is over."""
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while not self.finished:
                attempt = self._attempt
                if not (attempt.wait(_left(end)) and self._go_on(attempt, end)):
                    return False
        except (KeyboardInterrupt, SystemExit) as asked:
            self.ask("stop" if isinstance(asked, SystemExit) else "interrupt")
            self.end_within(_PATIENCE + 2 * self.grace)
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

    def outcome(self) -> None:
        """Raise what went wrong in the last attempt, with what had gone wrong before."""
        error = self._failed or _error_of(self._attempt)
        if error is None:
            return
        if self._past and not getattr(error, "history", ()):
            self._tell_history(error)
        raise error

    def _tell_history(self, error: Any) -> None:
        earlier = "\n".join(line for line, _ in self._past)
        if isinstance(error, (XmpError, TypeError)):
            told = f"{error}\n\nAttempts before (max_restarts={self._most}):\n{earlier}"
            error.args = (told, *error.args[1:])
        error.history = tuple(past for _, past in self._past)

    # --- from one attempt to the next ----------------------------------------------------------

    def _go_on(self, attempt: Launch, end: float | None) -> bool:
        """An attempt has ended: finish or make the next; False when the time is over first."""
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
        if error is None or not self._may_restart(attempt, error):
            self._finish()
            return
        self._note(attempt, error)
        say(f"xmp: restart {len(self._past)} of {self._most}: {_words(error)}")
        try:
            self._attempt = self._again(len(self._past), self._limits_left(), self.grace)
            live.discard(self._attempt)
        except Exception as failed:
            self._failed = failed
            self._finish()
        except BaseException:
            self._past.pop()  # there is no attempt after it
            raise
        if self._asked:  # while it was made
            self._attempt.ask(self._asked)

    def _may_restart(self, attempt: Launch, error: Exception) -> bool:
        if self._asked or attempt.asked_to_end or len(self._past) >= self._most:
            return False
        total = self._limits.total if self._limits else None
        over = total is not None and time.monotonic_ns() >= self._first(attempt) + total
        return not over and _helps(attempt, error)

    def _note(self, attempt: Launch, error: Exception) -> None:
        """Keep how it failed; what others had returned is of no use any more."""
        lasted = (time.monotonic_ns() - attempt.job.called) / 1e9
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        line = f"  {len(self._past) + 1}: {when}, after {lasted:.1f} s: {_words(error)}"
        if isinstance(error, ReplicaError):
            error.results = {}
        self._past.append((line, error))
        self._lost += attempt.stood_still

    def _limits_left(self) -> Limits | None:
        """``timeout`` counts for all attempts together, the other limits for each."""
        return self._limits and replace(self._limits, first=self._called + self._lost)

    def _first(self, attempt: Launch) -> int:
        return self._called + self._lost + attempt.stood_still

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            live.discard(self)
            if self._telling is not None:
                self._telling.finish(self._failed or _error_of(self._attempt))


def _left(end: float | None) -> float | None:
    return None if end is None else min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX)


def _error_of(attempt: Launch) -> Exception | None:
    try:
        attempt.outcome()
    except Exception as error:
        return error
    return None


def _helps(attempt: Launch, error: Exception) -> bool:
    """Whether another attempt may end otherwise, and nobody has wished for this end."""
    if isinstance(error, ReplicaTimeout):
        return attempt.overdue is not None and attempt.overdue.name != TOTAL
    if isinstance(error, ReplicaError):
        return not _is_final(attempt.failures[0])
    return attempt.orphaned


def _is_final(cause: Failure) -> bool:
    unsendable = cause.error_type == "TypeError" and f" {UNSENDABLE}: " in cause.message
    interrupted = cause.kind == "interrupted" or cause.signal_name == "SIGINT"
    return unsendable or interrupted


def _words(error: Exception) -> str:
    """One line: which rank, and what."""
    if isinstance(error, ReplicaError) and not isinstance(error, ReplicaTimeout):
        return f"rank {error.rank} {error.failures[0].what}"
    return f"{error}".partition("\n\n")[0].replace("\n", " ")
