"""The handle of a running launch; what happens to launches when this process ends or forks."""

from __future__ import annotations

import atexit
import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from xmp._os import log, signals
from xmp._os.excepthook import shown_short
from xmp._os.skips import is_skip
from xmp._plan.numbers import number_of_seconds
from xmp._processes.messages.launch import Interrupt, SetGrace, Stop
from xmp._words.errors import XmpError

from .fork_server_handle import drop_all
from .launch import Launch
from .launch_registry import running_launches
from .replica_process import ReplicaProcess
from .results import Results
from .template_pool import templates

if TYPE_CHECKING:
    from xmp._words.types import JobPlan

    from .restarts import RestartingLaunch

__all__ = ["ProcessContext", "end_before_others"]

R = TypeVar("R")
_MOST_NAMES = 8


class ProcessContext(Generic[R]):
    """The handle of a running launch, from ``join=False``.

    As a context manager it ends the replicas that still run at the end of the block.
    """

    def __init__(self, launch: Launch | RestartingLaunch) -> None:
        self._launch = launch
        self._noted = set[ReplicaProcess]()
        """The replicas whose end a ``join`` has noted."""

    def __repr__(self) -> str:
        """Show the function, the runtime, and the replicas by state; ask the launch for nothing."""
        job, states = self._launch.job, dict[str, list[str]]()
        for process in self.processes:
            where = f"rank {process.rank} (pid {process.pid})"
            states.setdefault(process.state, []).append(where)
        parts = [f"{state}: {_some(which)}" for state, which in states.items()]
        runtime = f", runtime {job.plan.runtime}" if job.plan.runtime else ""
        head = f"{job.name}, {len(self.processes)} replicas{runtime}"
        return f"<ProcessContext of {'; '.join([head, *parts])}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: only the process that has "
            "started the replicas can wait for them. Send pids() or results() instead."
        )

    @property
    def plan(self) -> JobPlan:
        """The plan of the launch; after a restart, that of the present attempt."""
        return self._launch.job.plan

    @property
    def processes(self) -> list[ReplicaProcess]:
        """The replicas in rank order; after a restart, those of the present attempt."""
        return [process for _, process in sorted(self._launch.attempt.outcome.processes.items())]

    def pids(self) -> list[int]:
        """Return the replicas' process ids, in rank order."""
        return [process.pid for process in self.processes]

    @property
    def sentinels(self) -> dict[int, int]:
        """The ``sentinel`` of each replica whose end no ``join`` has noted: its place in processes.

        For ``multiprocessing.connection.wait(context.sentinels)``. Empty after the last ``join``.
        """
        return {
            process.sentinel: index
            for index, process in enumerate(self.processes)
            if process not in self._noted and not process.closed
        }

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for all replicas: True when all have ended, False when ``timeout`` seconds are over.

        ``grace_period``: seconds in which the other replicas may end by themselves after a
        failure, before they get SIGTERM, and the seconds from then to SIGKILL. Without it SIGTERM
        comes at once, and SIGKILL after the launch's ``grace``.
        With ``max_restarts`` this makes the attempts that are left: none begins while no thread
        waits.

        Raises ReplicaError when a replica has failed, after xmp has ended the others; TypeError or
        ValueError for a wrong argument. KeyboardInterrupt and SystemExit from a signal
        handler end the launch before they go on; after any other exception it runs on, and
        ``join`` can be called again.
        """
        __tracebackhide__ = True  # as for all public functions (xmp/_calls/spawn.py)
        if grace_period is not None:
            self._launch.ask(SetGrace(_grace(grace_period)))
        seconds = _timeout(timeout)
        try:
            return self._join(seconds, enough=self._enough)
        except BaseException as error:
            if not _of_a_launch(error):
                raise
            raise _shown(error) from error.__cause__

    def _enough(self) -> bool:
        """Return whether ``join`` returns False before ``timeout`` seconds are over."""
        return False

    def _join(
        self,
        timeout: float | None,
        owned: bool = False,
        enough: Callable[[], bool] = lambda: False,
    ) -> bool:
        try:
            if not self._launch.wait(timeout, owned, enough):
                return False
        finally:
            over = self._launch.finished
            self._noted.update(p for p in self.processes if over or p.reported is not None)
        self._launch.raise_error()
        return True

    def results(self) -> Results[R]:
        """Wait for all replicas and return what they returned; raises as ``join`` does."""
        __tracebackhide__ = True
        try:
            return self._results()
        except BaseException as error:
            if not _of_a_launch(error):
                raise
            raise _shown(error) from error.__cause__

    def _results(self, owned: bool = False) -> Results[R]:
        """As ``results``; an ``owned`` launch ends whatever is raised."""
        self._join(None, owned)
        attempt = self._launch.attempt
        return Results(attempt.outcome.results, attempt.start_timeline())

    def stacks(self) -> dict[int, str]:
        """Return the Python stacks of every live replica as text, by rank; empty after the end."""
        return self._launch.attempt.live_stacks()

    def terminate(self) -> None:
        """End all replicas (SIGTERM, ``grace`` seconds, SIGKILL); returns when they have ended."""
        with signals.deferred():
            self._launch.attempt.outcome.ended_by = "terminate() was called"
            self._launch.ask(Stop())
            self._launch.end_within(self._launch.grace + 5.0)

    def __enter__(self) -> ProcessContext[R]:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._launch.finished:
            self.terminate()


def _of_a_launch(error: BaseException) -> bool:
    """Return whether a launch ends with it: its failure, a Ctrl-C, a skipped test."""
    return isinstance(error, (XmpError, KeyboardInterrupt)) or is_skip(error)


def _shown(error: BaseException) -> BaseException:
    """Return the error without xmp's frames, which say nothing about the user's call above."""
    if isinstance(error, XmpError):
        shown_short(error)
    elif "IPython" in sys.modules:
        from xmp._processes.report.ipython import rendered

        rendered(error)
    return error.with_traceback(log.users_frames(error.__traceback__))


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _grace(given: object) -> float:
    """Refuse what would raise in the supervisor, and end it with the launch."""
    seconds = number_of_seconds("grace_period", given)
    if not 0 <= seconds < 1e9:
        raise ValueError(f"grace_period={given!r}: give a number of seconds from 0 up")
    return seconds


def _timeout(given: object) -> float | None:
    """Return seconds that the kernel can count; None for more."""
    seconds = None if given is None else number_of_seconds("timeout", given, or_none=True)
    if seconds is not None and math.isnan(seconds):
        raise ValueError(f"timeout={given!r}: give a number of seconds, or None for no limit")
    return None if seconds is None or seconds >= 1e9 else seconds


def _forget_all() -> None:
    for launch in list(running_launches):
        launch.drop()
    running_launches.clear()
    drop_all()
    templates.forget()


def _at_exit() -> None:
    """Wait for the replicas when this process ends normally, as multiprocessing does.

    After a Ctrl-C, interrupt them: the terminal's signal does not reach them.
    """
    interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    for launch in list(running_launches):
        if launch.job.settings.daemon or interrupted:
            launch.ask(Stop() if launch.job.settings.daemon else Interrupt())
        try:
            launch.leave()
            launch.wait(None)
            if not launch.job.settings.daemon and not interrupted:
                launch.raise_error()
        except BaseException as error:
            log.error(str(error) or type(error).__name__)  # no caller is left to raise it to
    templates.close()


def end_before_others() -> None:
    """Wait for the replicas before the handlers of atexit run that are registered by now."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_at_exit)
