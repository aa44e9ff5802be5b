"""One replica as the launcher knows it: it is the supervisor's child, and not the launcher's."""

from __future__ import annotations

import math
import signal
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from xmp._os import proc
from xmp._processes.system import processes
from xmp._processes.system.processes import HeldProcess

from .sentinel import Sentinel

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReplicaProcess", "Reports"]

_LAST_WORDS = 1.0
"""Seconds in which a supervisor has reported an end that the kernel already shows."""
_LOOK_SECONDS = 0.02


class Reporting(Protocol):
    """A launch, whose supervisor reports on its processes."""

    finished: bool

    @property
    def processes(self) -> dict[int, ReplicaProcess]: ...

    def take_in(self, until: Callable[[], bool], seconds: float) -> None: ...


class Reports:
    """The reports of one launch's supervisor; its processes do not keep the launch alive."""

    def __init__(self, launch: Reporting) -> None:
        self._launch = weakref.ref(launch)

    def take(self, rank: int, seconds: float) -> None:
        """Take in what has come, and for so long what comes, until this rank's end is there."""
        launch = self._launch()
        if launch is not None and not launch.finished:
            known = launch.processes
            launch.take_in(lambda: known[rank].reported is not None, seconds)
            if all(process.reported is not None for process in known.values()):
                launch.take_in(lambda: False, _LAST_WORDS)  # what the launch holds is let go then

    @property
    def over(self) -> bool:
        """Whether there will be no more."""
        launch = self._launch()
        return launch is None or launch.finished


class ReplicaProcess:
    """One replica: ``rank``, and what a ``multiprocessing.Process`` that was started has.

    The answers are those of the moment, whether or not a thread waits for the launch. If a replica
    ends by ``terminate()`` or ``kill()`` the launch fails, as it does by a signal from elsewhere.
    """

    def __init__(
        self, rank: int, pid: int, reports: Reports | None = None, daemon: bool = False
    ) -> None:
        self.rank = rank
        self.pid = pid
        self.daemon = daemon
        """Whether it ends with this process, as ``daemon=`` of the launch says."""
        self.ended_by = ""
        """The method by which this program has ended it: "terminate" or "kill"."""
        self.reported: int | None = None
        """The exit code, as the supervisor has reported it so far."""
        self._reports = reports
        self._waited = False
        self._sentinel: Sentinel | None = None
        self._closed = False

    def __repr__(self) -> str:
        """Show the rank, the pid and the state."""
        return f"<ReplicaProcess rank {self.rank}, pid {self.pid}: {self.state}>"

    @property
    def name(self) -> str:
        """``Replica-<rank>``, as ``multiprocessing.current_process().name`` says inside."""
        return f"Replica-{self.rank}"

    @property
    def ident(self) -> int:
        """The pid."""
        return self.pid

    @property
    def sentinel(self) -> int:
        """A descriptor that is ready to be read once it has ended, until ``close()``.

        For ``multiprocessing.connection.wait``, ``select`` and event loops. ValueError after
        ``close()``.
        """
        self._check_open()
        if self._sentinel is None:
            self._sentinel = Sentinel(self.pid, lambda: self.reported is not None)
        return self._sentinel.descriptor

    @property
    def exitcode(self) -> int | None:
        """None while it runs, else its exit code, or minus the signal that ended it.

        ValueError after ``close()``.
        """
        self._check_open()
        if self._reports is None or (self._reports.over and self.reported is not None):
            return self.reported
        gone = self.reported is None and processes.is_gone(self.pid)
        # A supervisor that is stopped would report nothing: it is waited for only once.
        self._reports.take(self.rank, _LAST_WORDS if gone and not self._waited else 0.0)
        self._waited = gone
        if self.reported is None and gone and self._reports.over:
            return -signal.SIGKILL  # with its supervisor, which can report nothing any more
        return self.reported

    @property
    def state(self) -> str:
        """How it is, for a person: "running", "ended", "exit code 3", "killed by SIGSEGV"."""
        code = self.reported
        if code is None:  # what the kernel knows may not have been reported yet
            return "ended" if processes.is_gone(self.pid) else "running"
        return f"killed by {processes.signal_name(-code)}" if code < 0 else f"exit code {code}"

    def is_alive(self) -> bool:
        """Return whether it runs. Raise ValueError after ``close()``."""
        return self.exitcode is None and not processes.is_gone(self.pid)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most ``timeout`` seconds; raises nothing if it failed.

        ValueError after ``close()``.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (end is None or time.monotonic() < end):
            left = math.inf if end is None else max(0.0, end - time.monotonic())
            if self._reports is None or self._reports.over:
                time.sleep(min(left, _LOOK_SECONDS))
            else:
                self._reports.take(self.rank, min(left, _LAST_WORDS))

    def terminate(self) -> None:
        """Send it SIGTERM, if it runs; does not wait. ValueError after ``close()``."""
        self._end("terminate", signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL, if it runs; does not wait. ValueError after ``close()``."""
        self._end("kill", signal.SIGKILL)

    def close(self) -> None:
        """Close its ``sentinel``. Of the rest only name, pid, ident and daemon stay readable.

        ValueError while it runs.
        """
        if self._closed:
            return
        if self.is_alive():
            raise ValueError(
                f"{self!r} cannot be closed while it runs: call join() first, or terminate()"
            )
        if self._sentinel is not None:
            self._sentinel.close()
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether ``close()`` was called."""
        return self._closed

    def _end(self, how: str, number: signal.Signals) -> None:
        found = proc.alive(self.pid) if self.is_alive() else None
        held = HeldProcess.hold(found) if found is not None else None
        if held is not None:
            self.ended_by = how
            held.signal(number)
            held.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the process object is closed")
