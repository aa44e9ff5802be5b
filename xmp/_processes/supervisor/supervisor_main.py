"""The supervisor: loads the call of one launch, makes its replicas and watches them to the end.

A template, script holder or keeper forks one for each launch; the launcher's order is the first
message to it.

It inherits its parent's imports, then loads the script, unless its parent has loaded it, and the
call; replicas that are fresh interpreters load both themselves. Every replica inherits the state of
this process, so it opens no device and starts no thread.

It ends when every replica has ended and the launcher has the report; or at once, with all replicas,
when the launcher is gone. If it is killed, the kernel kills the replicas.
"""

from __future__ import annotations

import os
import signal
import time

from xmp._processes.messages import launch
from xmp._processes.messages.connection import Connection
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.messages.timeline import Timeline
from xmp._processes.output.streams import Outlets, Sink
from xmp._processes.replica.exit import finish_parent, forget_exit_handlers
from xmp._processes.replica.role import DescriptorLayout, LoadedCall
from xmp._processes.system import finalisation, launcher_mark, linux, stack_dump, thread_pools
from xmp._processes.system.descriptors import (
    move_above,
    raise_descriptor_limit,
    redirect_others_to_null,
)

from .loading import CannotFork, Received, load_call
from .loop import OwnDescriptors, SupervisorLoop
from .making import ReplicaMaker
from .monitor import Monitor

__all__ = ["main"]


def main(control: int, lifeline: int, inherited: LoadedCall | None) -> None:
    """Be the supervisor of one launch; return when everything of it has ended.

    Under ``start_method="fork"`` the call itself is ``inherited``.
    """
    connection = Connection(control)
    linux.arm(lifeline)
    linux.subreaper()
    forget_exit_handlers()
    (order,), descriptors = connection.expect(launch.StartLaunch)
    received = Received.of(order, descriptors, time.monotonic_ns())
    launcher_mark.leave_runtime(order.runtime)
    try:
        call = load_call(received, inherited)
    except CannotFork as refusal:
        connection.send(refusal.message)
    else:
        if os.environ.get("XMP_LOG", "").lower() == "debug":
            from xmp._os import log  # not above: its imports cost every replica pages

            seconds = (time.monotonic_ns() - received.at) / 1e9
            log.debug("ready to make replicas in %.3f s", seconds, process="supervisor")
        loop = _start(received, call, connection, lifeline)
        if loop is not None:
            loop.run()
    finish_parent(order.settings.grace)


def _start(
    received: Received, call: LoadedCall | None, connection: Connection, lifeline: int
) -> SupervisorLoop | None:
    """Make every replica and return the loop; None, with no replica left, if one cannot be made."""
    order = received.order
    timeline = Timeline(order.called, received.at, time.monotonic_ns())
    raise_descriptor_limit()
    layout = DescriptorLayout.free()
    own = OwnDescriptors.move_above(layout.above, connection, lifeline)
    outlets = _outlets(order, layout)
    thread_pools.pause()
    # A request for stacks must not end a replica, however early it comes.
    if order.method == "exec":
        signal.signal(stack_dump.DUMP_SIGNAL, signal.SIG_IGN)  # exec keeps ignored signals ignored
    else:
        os.dup2(0, layout.stacks, inheritable=False)
        stack_dump.enable_stacks(layout.stacks)  # each child puts its own file there
    maker = ReplicaMaker(received, call, timeline, layout, outlets)
    try:
        maker.make_all(own.replicas_lifeline)
    except (OSError, MemoryError) as error:
        own.connection.send(launch.CannotMake(maker.give_up(error)))
        return None
    linux.look_after(own.lifeline)  # not before: a library's at-fork hook may have hung here
    if order.method == "exec":
        maker.send_orders()
    os.close(own.replicas_lifeline)
    # Descriptors of the arguments, the leases, and under "inherit" all that the launcher had open:
    # a reader at their other end must see end-of-file when the replicas close theirs.
    redirect_others_to_null(finalisation.descriptors(), below=layout.above)
    pids = [(replica.rank, replica.pid, replica.forked) for replica in maker.replicas]
    own.connection.post(
        launch.ReplicasStarted(os.getpid(), pids, timeline.received, timeline.loaded)
    )
    assert maker.records is not None
    monitor = Monitor(order, maker.replicas, own.connection, outlets, maker.records)
    return SupervisorLoop(order, monitor, own, maker.records)


def _outlets(order: LaunchOrder, layout: DescriptorLayout) -> Outlets:
    """Return the outlets of the replicas' standard output and error."""
    errors = Sink(move_above(os.dup(2), layout.above))
    if order.settings.output is None:
        return Outlets(errors)
    from xmp._processes.output.capture import Capture
    from xmp._processes.system.stdio import buffer_lines

    buffer_lines()
    return Capture(errors, order.settings.output, layout.above, order.settings.host_name)
