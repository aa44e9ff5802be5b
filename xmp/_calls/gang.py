"""``gang``: replicas that stay between calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from xmp._os import log
from xmp._os.imports import without_collections
from xmp._processes import Results
from xmp._words.errors import XmpError
from xmp._words.types import Limits

from . import checks
from .call_checks import check_function
from .spawn import Args, asked_by, public, refuse_while_importing
from .turns import Turns

if TYPE_CHECKING:
    from collections.abc import Collection

    from xmp._words.event import Event
    from xmp._words.types import Bind, JobPlan, RuntimeName, StartMethod

__all__ = ["Gang", "gang"]

R = TypeVar("R")
_KEPT = "The gang keeps its replicas, with their state: the next call finds both."
_LOST = (
    "The gang has lost its replicas, with their state: the next call starts new ones, and runs "
    "setup first."
)


def nothing(rank: int) -> None:
    """Be the setup of a gang that has none."""


class Gang:
    """Replicas that stay: the same processes, devices and compiled programs for every call.

    ``xmp.gang`` makes one. As a context manager it is closed at the end of the block.
    """

    def __init__(self, start: Callable[[], Any], limits: Limits | None) -> None:
        self._start = start
        self._limits = limits or Limits()
        self._pid = os.getpid()
        self._launch: Any = None
        self._closed = False
        self._turns = Turns()
        self.generation = 0
        """The number of starts of the replicas."""
        self._begin()

    def __repr__(self) -> str:
        """Show the runtime, the number of replicas, and whether they live."""
        how = "closed" if self._closed else "alive" if self.alive else "lost"
        return f"<Gang of {self.plan.world_size} replicas, runtime {self.plan.runtime}: {how}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Gang cannot be pickled or copied: only the process that has made it can call its "
            "replicas. In a replica, xmp.state() holds what stays between calls"
        )

    # --- calls ---------------------------------------------------------------------------------

    @public
    def run(
        self,
        fn: Callable[..., R],
        args: Args = (),
        *,
        kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
        hang_timeout: float | None = None,
    ) -> Results[R]:
        """Run ``fn(rank, *args, **kwargs)`` on every replica and return the results.

        Calls that were submitted before run first. Ctrl-C ends the call: where the function asks
        ``xmp.preempted()``, that turns true at one step on all replicas, which end by themselves;
        otherwise, and at a second Ctrl-C, they get SIGINT. Replicas that come back within ``grace``
        are kept.

        Args:
            fn: the function; its first argument is the global rank.
            args, kwargs: for ``fn``; packed again for each call.
            timeout: seconds that this call may take; None: as the gang says.
            hang_timeout: seconds without progress, as in ``xmp.spawn``; None: as the gang says.

        Raises:
            ReplicaError: a replica has failed; the last line says whether the replicas were kept.
            TypeError, ValueError: a wrong argument, or one that cannot be sent.
            RuntimeError: the gang is closed, runs a call of another thread or of this one, or
                belongs to another process.
        """
        what = self._checked(fn, args, kwargs, timeout, hang_timeout)
        with self._turns.own():
            return self._call(*what)

    @public
    def submit(
        self,
        fn: Callable[..., R],
        args: Args = (),
        *,
        kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
        hang_timeout: float | None = None,
    ) -> Future[Results[R]]:
        """Begin a call as ``run`` does, and return its future at once; calls run in their order.

        ``future.result()`` returns what ``run`` returns. Ctrl-C there ends the call. The arguments
        are packed when the call begins.

        Raises:
            TypeError, ValueError, RuntimeError: as ``run``.
        """
        what = self._checked(fn, args, kwargs, timeout, hang_timeout)
        return self._turns.submit(lambda: self._call(*what), self._interrupt)

    @public
    def restart(self) -> None:
        """End the replicas and start new ones, which run ``setup``: their state is lost."""
        self._refuse()
        with self._turns.own():
            self._end()
            self._begin()

    @public
    def close(self) -> None:
        """End the replicas: they run their exit handlers. End a call that still runs first.

        Submitted calls that have not begun are cancelled. Does nothing if the gang is closed.
        """
        if self._closed or self._pid != os.getpid():
            return
        with self._turns.changed:
            self._closed = True
        self._turns.cancel()
        self._end()

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except XmpError as error:
            if kind is None:
                raise
            log.error(str(error))  # the caller gets what has left the block

    # --- questions -----------------------------------------------------------------------------

    @property
    def plan(self) -> JobPlan:
        """The plan of the replicas, as of their last start."""
        plan: JobPlan = self._launch.job.plan
        return plan

    @property
    def alive(self) -> bool:
        """True while all replicas live, and while they are being started."""
        if self._closed or self._pid != os.getpid():
            return False
        self._launch.reap()
        processes = self._launch.processes.values()
        return not self._launch.finished and all(each.is_alive() for each in processes)

    def pids(self) -> list[int]:
        """Return the replicas' process ids, in rank order."""
        return [each.pid for _, each in sorted(self._launch.processes.items())]

    def stacks(self) -> dict[int, str]:
        """Return the Python stacks of every live replica as text, by rank."""
        stacks: dict[int, str] = self._launch.live_stacks()
        return stacks

    # --- how -----------------------------------------------------------------------------------

    def _checked(
        self, fn: Any, args: Any, kwargs: Any, timeout: Any, hang_timeout: Any
    ) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Limits]:
        self._refuse()
        check_function(fn, args, kwargs)
        total = checks.nanoseconds("timeout", timeout) or self._limits.total
        hang = checks.nanoseconds_of_a_hang("hang_timeout", hang_timeout) or self._limits.hang
        return fn, args, kwargs or {}, Limits(total=total, hang=hang)

    def _refuse(self) -> None:
        """Raise RuntimeError where no call can begin."""
        if self._pid != os.getpid():
            raise RuntimeError(
                f"this gang belongs to process {self._pid}, of which this one is a fork: only that "
                "one can call its replicas. Make a gang here"
            )
        if self._closed:
            raise RuntimeError("the gang is closed: make another one with xmp.gang()")

    def _call(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        limits: Limits,
    ) -> Results[Any]:
        with self._turns.changed:  # a gang that is being closed begins no call
            self._refuse()
            launch = self._ready()
            launch.begin_call(fn, args, kwargs, limits)
        try:
            launch.wait_for_call()
        except KeyboardInterrupt as why:
            if launch.finished:
                launch.told = True
                why.args = (f"{why}\n\n{_LOST}".strip(),)
            raise
        return self._outcome(launch)

    def _ready(self) -> Any:
        """Return the launch whose replicas are at their posts; start it, if need be."""
        launch = self._launch
        launch.reap()
        if launch.finished and not launch.told:
            launch.told = True
            self._raise(launch, launch.outcome, lost=True)  # of a death between calls
        if launch.finished:
            self._begin()
        return self._launch

    def _begin(self) -> None:
        """Start the replicas and run the setup. Raise what has failed."""
        with without_collections():
            self._launch = launch = self._start()
        self.generation += 1
        try:
            launch.wait_for_call()
        except BaseException:
            launch.told = True
            launch.terminate()  # it may have come back from an interrupt, and would wait for ever
            raise
        if not launch.over:
            launch.told = True
            launch.raise_error()
        launch.call.results = {}

    def _outcome(self, launch: Any) -> Results[Any]:
        """Return what the call has come to, or raise its error."""
        call = launch.call
        if not launch.over or call.failures or call.overdue or call.broken:
            launch.told = not launch.over
            self._raise(launch, call, lost=launch.told)
        results = Results(call.results, launch.start_timeline())
        call.results = {}
        return results

    def _raise(self, launch: Any, outcome: Any, lost: bool) -> NoReturn:
        """Raise the error of an outcome, with what has become of the replicas."""
        try:
            (launch if lost else outcome).raise_error()
        except XmpError as error:
            error._add(_LOST if lost else _KEPT, last=True)
            raise
        raise XmpError(f"the gang was ended while a call ran, or between calls\n\n{_LOST}")

    def _interrupt(self) -> None:
        """End the call that was submitted and runs."""
        self._launch.end_call(votes=True)

    def _end(self) -> None:
        """Have the replicas end, and wait for it. Raise what has failed, unless that was told."""
        launch = self._launch
        if launch.finished and launch.told:
            return
        launch.leave()
        launch.wait(None, owned=True)
        launch.told = True
        launch.raise_error()


@public
def gang(
    nprocs: int | None = None,
    *,
    setup: Callable[..., Any] | None = None,
    args: Args = (),
    kwargs: dict[str, Any] | None = None,
    daemon: bool = False,
    start_method: StartMethod | None = None,
    runtime: RuntimeName | None = None,
    devices: Sequence[int] | str | None = None,
    backend: str | None = None,
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    bind: Bind | None = None,
    start_timeout: float | None = None,
    timeout: float | None = None,
    hang_timeout: float | None = None,
    grace: float = 5.0,
    log_dir: str | os.PathLike[str] | None = None,
    prefix: bool | str | None = None,
    show: Collection[int] | str | int | None = None,
    progress: bool | None = None,
    events: Callable[[Event], object] | str | os.PathLike[str] | None = None,
) -> Gang:
    """Start replicas that stay, and return their ``Gang``: each ``run`` is a call of all of them.

    Processes, devices, process groups and compiled programs are those of the first call, and so is
    what the program keeps in ``xmp.state()``. The options mean what they mean to ``spawn``; the
    limits are those of each call that gives none of its own, the setup too.

    After a failure the replicas are kept, if all of them come back from the call within ``grace``:
    those that still run it get SIGINT. Otherwise they are ended, and the next call starts new ones.
    The error's last line says which of the two has happened.

    Args:
        nprocs: replicas on this host; None (or -1) for one per device.
        setup: ``setup(rank, *args, **kwargs)`` runs on every replica at each start of the gang.
        args, kwargs: for ``setup``.
        daemon: end the replicas at once when this process ends.
        grace: seconds in which replicas come back from a call that has failed; also between SIGTERM
            and SIGKILL, when they are ended.

    Raises:
        PlanError, PortError, StartError, TypeError: as ``spawn``; PlanError in a job of several
            hosts.
        ReplicaError: a replica has failed in ``setup``.
    """
    given = dict(locals())
    asked = asked_by({**given, "fn": given.pop("setup") or nothing, "join": True})
    refuse_while_importing()
    from .host import gang_start

    request, call = asked.requested(), asked.call()
    return Gang(lambda: gang_start(request, call), asked.settings.limits)
