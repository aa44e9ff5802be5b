"""The handle of a running launch, and what becomes of launches when this process ends or forks."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Generic, TypeVar

from xmp._errors import XmpError

from .job import ReplicaProcess
from .launch import Launch
from .living import live
from .parents import forget_in_child
from .results import Results
from .templates import templates
from .terminal import say
from .warm import drop_all

if TYPE_CHECKING:
    from xmp._types import JobPlan

    from .restarts import Restarting

__all__ = ["ProcessContext"]

R = TypeVar("R")


class ProcessContext(Generic[R]):
    """A running launch, from ``join=False``. Also a context manager that ends what still runs."""

    def __init__(self, launch: Launch | Restarting) -> None:
        self._launch = launch

    @property
    def plan(self) -> JobPlan | None:
        """What was planned; of several attempts, for the present one."""
        return self._launch.job.plan

    @property
    def processes(self) -> list[ReplicaProcess]:
        """The replicas in rank order; of several attempts, those of the present one."""
        return [self._launch.processes[rank] for rank in sorted(self._launch.processes)]

    def pids(self) -> list[int]:
        """The replicas' process ids, in rank order."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for all replicas; True when all are done, False when ``timeout`` seconds are over.

        ``grace_period`` (seconds) replaces the launch's ``grace`` between SIGTERM and SIGKILL; a
        TypeError or ValueError says that it is none.
        Raises ReplicaError when a replica failed, after the others have been ended. With
        ``max_restarts`` it first makes the attempts that are left: while nobody waits, none begins.
        """
        if grace_period is not None:
            _check_grace(grace_period)
            self._launch.ask("grace", grace_period)
        if not self._launch.wait(timeout):
            return False
        try:
            self._launch.outcome()
        except XmpError as error:
            # The user's call is above, and our frames below it tell nothing.
            raise error.with_traceback(None) from error.__cause__
        return True

    def results(self) -> Results[R]:
        """Wait for all replicas and return what they returned; raises as ``join`` does."""
        self.join()
        return Results(self._launch.results, self._launch.account())

    def stacks(self) -> dict[int, str]:
        """The Python stacks of every living replica, by rank."""
        return self._launch.live_stacks()

    def terminate(self) -> None:
        """End all replicas in order (SIGTERM, grace, SIGKILL) and wait."""
        self._launch.ask("stop")
        self._launch.end_within(self._launch.grace + 5.0)

    def __enter__(self) -> ProcessContext[R]:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._launch.finished:
            self.terminate()


def _check_grace(seconds: object) -> None:
    """What the supervisor cannot count with would end it, and the launch with it."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        kind = type(seconds).__name__
        raise TypeError(f"grace_period must be a number of seconds, not {kind}: {seconds!r}")
    if not 0 <= seconds < 1e9:
        raise ValueError(f"grace_period={seconds!r}: give a number of seconds from 0 up")


def _forget_all() -> None:
    for launch in list(live):
        launch.drop()
    live.clear()
    drop_all()
    forget_in_child()


def _at_exit() -> None:
    """A launcher that ends normally waits for its replicas, as multiprocessing does.

    One that ends by Ctrl-C passes it on: the terminal's signal does not reach the replicas.
    """
    interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    for launch in list(live):
        if launch.job.daemon or interrupted:
            launch.ask("stop" if launch.job.daemon else "interrupt")
        try:
            launch.wait(None)
            if not launch.job.daemon and not interrupted:
                launch.outcome()
        except BaseException as error:
            say(str(error) or type(error).__name__)  # nobody else will ever tell
    templates.close()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_at_exit)
