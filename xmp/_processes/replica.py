"""The child's side: a replica's first lines, the user's function, and its last lines.

A replica is forked by the supervisor. It either goes on in this very image (method "fork"), or
execs a fresh interpreter that receives order and call through its channel (method "exec").
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import faulthandler
import os
import resource
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xmp import _inside
from xmp._payload import load
from xmp._payload.script import import_main
from xmp._types import Framework, ReplicaPlan

from . import breakpoints, identity, kernel, marked, pools, randomness, state
from .account import Timeline
from .channel import Channel
from .mates import call_all
from .needs import installed
from .order import Order
from .outcome import exit_code, failed_code, record, send_result
from .role import Role, Seat, entrance
from .wire import Wire

if TYPE_CHECKING:
    from .pulse import Pulse

__all__ = [
    "DUMP_SIGNAL",
    "exec_main",
    "forget_exit_handlers",
    "has_exit_handlers",
    "run",
    "settle_in",
]

# SIGUSR1 and SIGUSR2 belong to Slurm, Lightning and users; libraries leave this one alone.
DUMP_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 6
# -c puts the working folder first in sys.path, where a user's file may shadow a library.
_EXEC = (
    "import sys; sys.path[:] = [p for p in sys.path if p] + [sys.argv[1]]; "
    "from xmp._processes.replica import exec_main; exec_main(*map(int, sys.argv[2:]))"
)

_GATE_SECONDS = 1.0

Call = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]


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
        pulse = _take_pulse(order, received)
        image = order.take_image(received)
        tracker = received.pop(0) if order.state.tracker else None
        state.apply(order.state, tracker)
        state.replace_environment(environment)
        marked.leave(environment.get(marked.VARIABLE, ""))
        kernel.set_name(f"xmp-replica-{plan.rank}")  # exec gave it the interpreter's
        _settle_anew(order, plan, lifeline, stacks)
        breakpoints.install()
        leases = dict(zip(order.leases, received, strict=False)) if plan.local_rank == 0 else {}
        told = wire if order.tells_phases else None
        if told is not None:
            told.tell_phase("importing")
        seat, enter = Seat(channel, lifeline, stacks), entrance(order.framework, False, told)
        role = Role.of(order, plan, seat, leases, wire, timeline, enter)
        role.pulse = pulse
        _inside.install(role.info, None, wire)
        arguments = received[len(leases) :]

        def call() -> Call:
            if told is not None:
                told.tell_phase("importing")
            if order.main is not None:
                import_main(order.main)
            return load(image, arguments)

        run(role, call)
    finally:
        os._exit(1)


def _settle_anew(order: Order, plan: ReplicaPlan, lifeline: int, stacks: int) -> None:
    """What exec has taken from the replica, and what a fork has from its parent."""
    if not kernel.arm(lifeline):
        _watch_by_thread(lifeline)  # the one that was started before exec is gone
    state.restore_signals(order.state)
    enable_stacks(stacks)
    if plan.threads and "OMP_NUM_THREADS" not in os.environ:
        pools.set_threads(plan.threads)
    if order.output is not None:
        from .capture import write_lines_at_once

        write_lines_at_once()


def _take_pulse(order: Order, received: list[int]) -> Pulse | None:
    """The pulse of the launch; takes its descriptor, if there is one, off the front."""
    if not order.hang:
        return None
    from .pulse import Pulse

    descriptor = received.pop(0)
    pulse = Pulse(len(order.host.replicas), descriptor)
    os.close(descriptor)
    return pulse


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
        state.restore_mask(role.order.state)  # an interrupt that came since the fork is told of
        role.identity.take()
        if role.pulse is not None:
            role.pulse.begin(plan.local_rank, role.order.hang)
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
            if plan.mates:
                result = call_all(role, framework, lambda rank: fn(rank, *args, **kwargs))
            else:
                result = fn(plan.rank, *args, **kwargs)
        finally:
            timeline.left = time.monotonic_ns()
        _wait_for_gang(role.gate)
        # What one had to import itself the template shall try for the next launch.
        imported = installed(pools.modules_since(known)) if plan.local_rank == 0 else []
        send_result(channel, result, timeline, imported)
        code = 0
    except SystemExit as error:
        code = exit_code(error)
        channel.tell("exit", time.monotonic_ns(), code, timeline)
    except BaseException as error:
        code = failed_code(framework, error)
        channel.tell("raised", time.monotonic_ns(), role.speaker, *record(error), timeline)
    _leave(framework if code == 0 else None, channel, code)


def _wait_for_gang(gate: int) -> None:
    """Begin to leave when the first batch is made: what ends takes the cores from what starts."""
    if gate >= 0:
        watch = select.poll()
        watch.register(gate, select.POLLIN)
        watch.poll(_GATE_SECONDS * 1000)


# --- the end -----------------------------------------------------------------------------------


def has_exit_handlers() -> bool:
    """Whether there is anything to forget in a fork of this process."""
    executors: Any = sys.modules.get("concurrent.futures.thread")
    finalizers = weakref.finalize._registry  # type: ignore[attr-defined]
    queues = executors is not None and bool(executors._threads_queues)
    return bool(atexit._ncallbacks() or finalizers or queues)


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
            channel.tell("raised", time.monotonic_ns(), -1, *record(error), Timeline())
        code = code or 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    capture = sys.modules.get(f"{__package__}.capture")
    if capture is not None:  # it is there where output passes through the supervisor
        capture.flush()
    os._exit(code)


def _save_coverage() -> None:
    """coverage.py saves in an exit handler that a forked process does not inherit."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is not None:
        current.stop()
        current.save()
