"""The child's side: a replica's first lines, the user's function, and its last lines.

A replica is forked by the supervisor. It either goes on in this very image (method "fork"), or
execs a fresh interpreter that receives order and call through its channel (method "exec").
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import faulthandler
import importlib
import os
import resource
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xmp import _inside
from xmp._payload import load, pack_image
from xmp._payload.script import import_main
from xmp._types import Framework, ReplicaInfo, ReplicaPlan

from . import identity, kernel, pools, randomness, state
from .account import Timeline
from .channel import Channel
from .needs import installed
from .order import Order
from .wire import Wire

__all__ = [
    "DUMP_SIGNAL",
    "Role",
    "Seat",
    "entrance",
    "exec_main",
    "forget_exit_handlers",
    "run",
    "settle_in",
]

# SIGUSR1 and SIGUSR2 belong to Slurm, Lightning and users; libraries leave this one alone.
DUMP_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 6
_TEXT_LIMIT = 32 * 1024
_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# -c puts the working folder first in sys.path, where a user's file may shadow a library.
_EXEC = (
    "import sys; sys.path[:] = [p for p in sys.path if p] + [sys.argv[1]]; "
    "from xmp._processes.replica import exec_main; exec_main(*map(int, sys.argv[2:]))"
)

Enter = Callable[[ReplicaInfo], "Framework | None"]
Call = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]


@dataclass(frozen=True)
class Seat:
    """Where a replica's descriptors lie; the supervisor's own lie from ``above`` up."""

    channel: int
    lifeline: int
    stacks: int

    @property
    def above(self) -> int:
        """The first number that is not the replica's."""
        return self.stacks + 1


@dataclass
class Role:
    """Who a replica is and what it needs to begin, made by its parent.

    Whatever a fork makes itself, or is the first to touch, costs it a page of its own: 3 µs and
    4 KB each.
    """

    order: Order
    plan: ReplicaPlan
    info: ReplicaInfo
    identity: identity.Identity
    channel: Channel
    timeline: Timeline
    enter: Enter
    streams: randomness.OwnStreams | None = None
    """None in a fresh interpreter, and where the user gave a seed."""

    @classmethod
    def of(
        cls,
        order: Order,
        plan: ReplicaPlan,
        seat: Seat,
        leases: dict[str, int],
        channel: Channel,
        timeline: Timeline,
        enter: Enter,
    ) -> Role:
        """The role of one replica; ``leases`` are given to the first of the host."""
        info = ReplicaInfo(
            rank=plan.rank,
            local_rank=plan.local_rank,
            world_size=order.world_size,
            local_world_size=len(order.host.replicas),
            host_index=order.host.index,
            runtime=order.runtime,
            device=plan.device,
            restart_count=order.restart_count,
            settings=dict(plan.settings),
            descriptors=leases if plan.local_rank == 0 else {},
        )
        who = identity.Identity(order.state, plan.rank, seat.lifeline)
        return cls(order, plan, info, who, channel, timeline, enter)


def settle_in(seat: Seat, order: Order, plan: ReplicaPlan, parent: int, pipe: int) -> None:
    """The first lines after the fork: from here on the replica is safe to leave alone."""
    signal.set_wakeup_fd(-1)
    # Not signal.signal, whose enums touch 20 pages.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    os.setpgid(0, 0)
    kernel.set_name(f"xmp-replica-{plan.rank}")
    armed = kernel.die_with_parent(parent, pipe, seat.lifeline)
    kernel.close_from(seat.above)
    if not armed:
        _watch_by_thread(seat.lifeline)
    resource.setrlimit(resource.RLIMIT_NOFILE, order.state.limits["RLIMIT_NOFILE"])
    if plan.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, plan.cpus)
    if order.state.blocked or order.state.unignored:
        state.restore_mask(order.state)


def _watch_by_thread(lifeline: int) -> None:
    def wait() -> None:
        os.set_blocking(lifeline, True)
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="xmp-lifeline", daemon=True).start()


def replace_image(seat: Seat) -> None:
    """Exec a fresh interpreter that goes on as this replica; never returns."""
    numbers = (seat.channel, seat.lifeline, seat.stacks)
    for descriptor in numbers:
        os.set_inheritable(descriptor, True)
    command = [identity.executable(), *identity.interpreter_flags(), "-c", _EXEC]
    command += [identity.package_root, *map(str, numbers)]
    os.execve(command[0], command, dict(os.environ))


def exec_main(channel: int, lifeline: int, stacks: int) -> None:
    """The first lines of a replica with an interpreter of its own; never returns."""
    timeline = Timeline(born=time.monotonic_ns())
    wire = Channel(Wire(channel))
    try:
        (order, plan, environment), received = wire.receive()
        wire.local_rank = plan.local_rank
        image = order.take_image(received)
        tracker = received.pop(0) if order.state.tracker else None
        state.apply(order.state, tracker)
        state.replace_environment(environment)
        if not kernel.arm(lifeline):
            _watch_by_thread(lifeline)  # the one that was started before exec is gone
        state.restore_signals(order.state)
        state.restore_mask(order.state)
        enable_stacks(stacks)
        if plan.threads and "OMP_NUM_THREADS" not in os.environ:
            pools.set_threads(plan.threads)
        leases = dict(zip(order.leases, received, strict=False)) if plan.local_rank == 0 else {}
        seat, enter = Seat(channel, lifeline, stacks), entrance(order.framework, forked=False)
        role = Role.of(order, plan, seat, leases, wire, timeline, enter)
        _inside.install(role.info, None, wire)
        arguments = received[len(leases) :]

        def call() -> Call:
            if order.main is not None:
                import_main(order.main)
            return load(image, arguments)

        run(role, call)
    finally:
        os._exit(1)


def enable_stacks(descriptor: int) -> None:
    """Write the stacks of all threads there on a native crash and when asked by the signal."""
    faulthandler.enable(descriptor)
    faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=True)


def run(role: Role, call: Callable[[], Call]) -> None:
    """Be the replica, from the first line that may fail to the last; never returns."""
    code = 1
    plan, channel, timeline = role.plan, role.channel, role.timeline
    framework: Framework | None = None
    known = len(sys.modules)
    try:
        role.identity.take()
        # The framework first: a script that is imported only here may start a device.
        framework = role.enter(role.info)
        _inside.settle(role.info, framework)
        fn, args, kwargs = call()
        if role.order.seed is not None:
            randomness.seed_all(role.order.seed)
        elif role.streams is not None:
            role.streams.begin()
        timeline.ready = timeline.entered = time.monotonic_ns()
        channel.tell_entered()
        try:
            result = fn(plan.rank, *args, **kwargs)
        finally:
            timeline.left = time.monotonic_ns()
        # What one had to import itself the template shall try for the next launch.
        imported = installed(pools.modules_since(known)) if plan.local_rank == 0 else []
        _send_result(channel, result, timeline, imported)
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
        channel.tell("exit", time.monotonic_ns(), code, timeline)
    except BaseException as error:
        channel.tell("raised", time.monotonic_ns(), *_record(error, plan.rank), timeline)
    _leave(framework if code == 0 else None, channel, code)


def entrance(framework: str, forked: bool) -> Enter:
    """The function with which a replica enters its framework, if it has one.

    For ``forked`` replicas the framework may do here, in their parent, what is the same for all.
    """
    if not framework:
        return lambda info: None
    module: Any = importlib.import_module(framework)
    prepare = getattr(module, "prepare", None) if forked else None
    enter: Enter = prepare() if prepare is not None else module.enter
    return enter


# --- outcomes ----------------------------------------------------------------------------------


def _send_result(channel: Channel, result: Any, timeline: Timeline, imported: list[str]) -> None:
    try:
        image = pack_image(result, kernel.memory_file)
    except Exception as error:
        kind = type(result).__name__
        raise TypeError(f"the result ({kind}) cannot be sent back: {error}") from error
    descriptors = [image.descriptor] if image.data is None else []
    now = time.monotonic_ns()
    channel.tell(
        "returned", now, image.data, image.size, timeline, imported, descriptors=descriptors
    )
    image.close()


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _record(error: BaseException, rank: int) -> tuple[Any, ...]:
    """What is told of an exception: names, words, traceback, and itself where it travels."""
    name = type(error).__qualname__
    if type(error).__module__ not in ("builtins", "__main__", "__mp_main__"):
        name = f"{type(error).__module__}.{name}"
    text = "".join(traceback.format_exception(type(error), error, _users_part(error)))
    if len(text) > _TEXT_LIMIT:
        half = _TEXT_LIMIT // 2
        text = f"{text[:half]}\n  … {len(text) - _TEXT_LIMIT} characters left out …\n{text[-half:]}"
    try:
        words = str(error)
    except Exception:
        words = "(its message cannot be shown)"
    interrupted = isinstance(error, KeyboardInterrupt)
    return name, words[:_TEXT_LIMIT], text, _travelling(error), interrupted


def _users_part(error: BaseException) -> Any:
    """The traceback from the user's first frame on."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        place = place.tb_next
    return place if place is not None else error.__traceback__


def _travelling(error: BaseException) -> bytes | None:
    """The pickled exception, if what arrives is one as well."""
    from xmp._payload import load_image

    try:
        image = pack_image(error, kernel.memory_file)
        if image.data is None:
            image.close()
            return None
        return image.data if isinstance(load_image(image), BaseException) else None
    except BaseException:
        return None


# --- the end -----------------------------------------------------------------------------------


def forget_exit_handlers() -> None:
    """After a fork: what the parent registered is the parent's to run.

    A child that ran the handlers of inherited TemporaryDirectory objects would delete what
    belongs to all.
    """
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    # finalize registers its one exit handler once per process: the next one shall do it again.
    if weakref.finalize._registered_with_atexit:  # type: ignore[attr-defined]
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    executors: Any = sys.modules.get("concurrent.futures.thread")
    if executors is not None:
        executors._threads_queues.clear()  # threads that exist in the parent alone


def _leave(framework: Framework | None, channel: Channel, code: int) -> None:
    """Leave the mesh, run what was registered here, flush, end. Never returns."""
    try:
        if framework is not None:
            framework.leave()
        threading._shutdown()  # type: ignore[attr-defined]
        identity.finish_multiprocessing()
        atexit._run_exitfuncs()
        _save_coverage()
    except BaseException as error:
        if not code:
            channel.tell("raised", time.monotonic_ns(), *_record(error, -1), Timeline())
        code = code or 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(code)


def _save_coverage() -> None:
    """coverage.py saves in an exit handler that a forked process does not inherit."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is not None:
        current.stop()
        current.save()
