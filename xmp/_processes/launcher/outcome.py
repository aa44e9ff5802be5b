"""What a launch has come to: its replicas, their results, and what went wrong."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from xmp._plan.runtime_choice import add_choice
from xmp._processes.messages import launch
from xmp._processes.messages.order import Failure
from xmp._processes.messages.thread_replicas import spread
from xmp._processes.messages.timeline import StartTimeline, Timeline
from xmp._processes.report import host_error, replica_error, timeout_error
from xmp._processes.report.out_of_memory import OomCounters, OomFinding
from xmp._processes.report.replica_error import CALLED_ON_IT
from xmp._processes.report.stack_texts import grouped
from xmp._processes.system.descriptors import close_all
from xmp._rules.limits import Overdue
from xmp._words.errors import ReplicaError, StartError, XmpError
from xmp._words.host_words import HostFailure
from xmp._words.record import RankPlace

from . import leftovers
from .job import Job
from .replica_process import ReplicaProcess, Reports
from .results import ResultLimit, received
from .skipped import real_first, skip_of

__all__ = ["Outcome"]

_ENDED = "ended early"
_WHILE_LOADING = "ended while it loaded the function and its arguments"
_LOADING = (
    "To load them runs code: __reduce__ and __setstate__ of the arguments, and the modules that "
    "are\nimported for them. After a crash their stack stands above, on standard error."
)


class Outcome:
    """Takes the supervisor's reports on the replicas; makes an error of what went wrong."""

    def __init__(self, job: Job, reports: Reports) -> None:
        self.processes: dict[int, ReplicaProcess] = {}
        """By rank; replicas that share a process as threads are one, under their first rank."""
        self.results: dict[int, Any] = {}
        self.failures: list[Failure] = []
        """The cause first."""
        self.overdue: Overdue | None = None
        self.broken: BaseException | None = None
        """Why the launch failed, if neither a replica nor a time limit is the reason."""
        self.orphaned = False
        """Whether the supervisor ended without a last message."""
        self.imported: list[str] = []
        """Installed modules that the first replica had to import itself."""
        self.ended_by = ""
        """What in this process had xmp end the launch: "terminate() was called"."""
        self.elsewhere: HostFailure | None = None
        """With which failure of another host the launch has ended."""
        self.leftovers = ""
        """Which processes of the launch still exist at its end."""
        self.host = job.settings.host_name or os.uname().nodename
        """The name of the host of the first failure."""
        self._job = job
        self._reports = reports
        self._plans = {plan.rank: plan for plan in job.host.replicas}
        self._timelines: dict[int, Timeline] = {}
        self._returned: set[int] = set()
        self._stacks: dict[int, str] = {}
        self._where_they_were: list[RankPlace] = []
        self.memory = OomFinding()
        """What the kernel has counted on the host of the first failure."""

    def of_call(self, job: Job) -> Outcome:
        """Return what a further call of the same replicas comes to: nothing yet."""
        fresh = Outcome(job, self._reports)
        fresh.processes = self.processes
        fresh._timelines = {rank: Timeline(entered=job.called) for rank in self._timelines}
        fresh._oom_counters = self._oom_counters.lately()
        return fresh

    def begin(self) -> None:
        """Count out-of-memory kills from now on."""
        self._oom_counters = OomCounters()

    def started(self, message: launch.ReplicasStarted) -> None:
        """Note that all replicas exist."""
        for rank, pid, forked in message.replicas:
            process = ReplicaProcess(rank, pid, self._reports, daemon=self._job.settings.daemon)
            self.processes[rank] = process
            times = self._job.called, message.received, message.loaded, forked
            self._timelines[rank] = Timeline(*times)

    def entered(self, rank: int, at: int) -> None:
        """Note that a replica is in the user's function."""
        self._timelines[rank].entered = at

    def returned(self, message: launch.ReplicaReturned, files: list[int]) -> None:
        """Take the result that a replica has returned."""
        rank, data, size, timeline, imported = message
        self._returned.add(rank)
        self._timelines[rank] = timeline.completed(self._timelines[rank])
        self.imported += imported
        if self._job.relay is not None:
            close_all(files)  # the driver has them, and opens it
            return
        try:
            self.results |= received(self._plans[rank], data, size, files, self._limit())
        except XmpError as error:
            self.broken = self.broken or error
        except BaseException:  # of a signal handler; a later join() must not return without it
            text = f"rank {rank}'s result is lost: a signal handler raised while it was loaded"
            self.broken = self.broken or XmpError(text, code="XMP-R07")
            raise

    def _limit(self) -> ResultLimit | None:
        limits, called = self._job.settings.limits, self._job.called
        if limits is None or limits.total is None:
            return None
        ends = (limits.first or called) + limits.total
        return ResultLimit(limits.total / 1e9, ends / 1e9)

    def ended(self, message: launch.ReplicaEnded) -> None:
        """Note that the process of a replica has ended."""
        self.processes[message.rank].reported = message.exit_code
        self._oom_counters.largest[message.rank] = message.peak

    def done(self, message: launch.Done) -> None:
        """Take the last report: no process of the launch is left."""
        self.overdue, self.failures, self._stacks, self._where_they_were = message
        self.failures = [self._unopened(failure) for failure in self.failures]
        for failure in self.failures:
            known = self._timelines.get(failure.rank)
            failure.entered = known is None or known.entered > 0
            process = self.processes.get(failure.rank)
            if process is not None and process.ended_by and failure.signal_name:
                failure.why = f"{process.ended_by}() {CALLED_ON_IT}"
        if self.overdue is None:
            self.failures = real_first(self.failures)
        if self.failures:
            self.memory = self._oom_counters.look()
        if self.overdue is None:
            self.failures = self.memory.largest_first(self.failures)

    def _unopened(self, failure: Failure) -> Failure:
        """In an agent, without the exception: to load it runs code that the driver is to run."""
        return failure if self._job.relay is None else replace(failure, pickled=None)

    def complete(self, processes: Collection[int]) -> bool:
        """Return whether the replicas of these keys of ``processes`` have returned."""
        return bool(processes) and self._returned.issuperset(processes)

    def supervisor_lost(self, how: str) -> None:
        """Note that the supervisor has ended without a last message; ``how`` it ended."""
        if self.broken is None:
            self.orphaned = True
            memory = self._oom_counters.look().found(killed=False)
            # A first replica may kill it before it reports that there are any.
            killed = how.endswith(("SIGKILL", "SIGTERM"))
            loads = (
                not self.processes
                and self._job.settings.start_method == "forkserver"
                and not killed
            )
            if loads and how.startswith(_ENDED):
                how = f"{_WHILE_LOADING}{how[len(_ENDED) :]}"
            else:
                loads = False
            parts = [f"the supervisor {how}", memory, _LOADING if loads else ""]
            self.broken = StartError("\n".join(filter(None, parts)), code="XMP-S04")

    def start_timeline(self, imports: tuple[tuple[str, float], ...]) -> StartTimeline:
        """Return how long each part of the start took; ``imports`` are the template's slowest."""
        times = {
            rank: time
            for first, time in self._timelines.items()
            for rank in spread(self._plans[first], None)
        }
        return StartTimeline(times, imports)

    def say_where(self, error: BaseException) -> None:
        """Add to a Ctrl-C where the replicas were, unless it says something already."""
        if isinstance(error, KeyboardInterrupt) and not error.args and self._stacks:
            where = "\n".join(grouped(self._stacks, with_lines=True, whole=""))
            error.args = (f"the replicas were interrupted here:\n{where}",)

    def raise_error(self) -> None:
        """Raise the error, with the processes that still exist, if anything went wrong."""
        error = self.error()
        if error is not None:
            raise leftovers.added(error, self.leftovers)

    def error(self) -> BaseException | None:
        """Return what the launch has failed with: a time limit, a replica, or its supervisor."""
        error = self._error()
        if isinstance(error, XmpError):
            error._about = self._job.plan, tuple(self._where_they_were)
            if not self.ended_by:
                add_choice(error, self._job.plan.choice)
        return error

    def first(self, failure: Failure) -> BaseException:
        """Return the error for the first failure, while replicas still run."""
        size, failure = self._job.plan.world_size, self._unopened(failure)
        memory = self._oom_counters.look()
        return self._named(replica_error.build([failure], size, self._where, {}, {}, memory))

    @property
    def _where(self) -> str:
        """The host in the text of an error: with its index, where there are several."""
        index = self._job.host.index
        return self.host if self._job.hosts is None else f"host {index} ({self.host})"

    @property
    def failed_on(self) -> str:
        """The host of the failure that counts, with its index; empty in a launch on one host."""
        if self._job.hosts is None:
            return ""
        verdict = self.elsewhere
        return self._where if verdict is None else f"host {verdict.host} ({verdict.name})"

    def _named(self, error: ReplicaError) -> ReplicaError:
        error.host, error._place = self.host, self._place_of(error.rank)
        output, plan = self._job.settings.output, self._plans.get(error.rank)
        if output is not None and output.log_dir is not None and plan is not None:
            path = output.black_box(plan)
            if os.path.exists(path):
                error._add(f"Its last collectives: {path}")
        return error

    def _place_of(self, rank: int) -> int | None:
        """In the handle's ``processes``, where these are of several hosts."""
        if self._job.host.index >= 0 or rank not in self.processes:
            return None
        return sorted(self.processes).index(rank)

    def _error(self) -> BaseException | None:
        if self.elsewhere is not None and not self._is_own(self.elsewhere):
            return host_error.build(self.elsewhere)
        size = self._job.plan.world_size
        known = (self.failures, size, self._where, self.results, self._stacks)
        memory = self.memory
        if self.overdue is not None:
            pids = {rank: process.pid for rank, process in self.processes.items()}
            places = self._where_they_were
            error = timeout_error.build(self.overdue, *known, self._plans, pids, memory, places)
            return self._named(error)
        if self.failures:
            skip = skip_of(self.failures)
            how = self.ended_by, self._place_of(self.failures[0].rank)
            return skip or self._named(replica_error.build(*known, memory, *how))
        return self.broken

    def _is_own(self, verdict: HostFailure) -> bool:
        """Return whether this host's own failure is the cause: here its whole report is known."""
        own = verdict.host == self._job.host.index and verdict.kind != "HostLost"
        return own and bool(self.failures or self.broken)
