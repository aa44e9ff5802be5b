"""A replica in a fresh interpreter: the image that ``settling.replace_image`` executes.

It inherits no memory: the supervisor sends the order, and the replica loads the call itself.
"""

from __future__ import annotations

import os
import time

from xmp import _inside
from xmp._processes.messages import launcher_state, thread_replicas
from xmp._processes.messages.connection import Connection
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.messages.replica import FreshReplicaOrder
from xmp._processes.messages.timeline import Timeline
from xmp._processes.system import (
    environment_changes,
    finalisation,
    launcher_mark,
    linux,
    thread_pools,
)
from xmp._processes.system.descriptors import keep_from_exec
from xmp._processes.system.records import Records
from xmp._processes.system.stack_dump import enable_stacks
from xmp._words.types import ReplicaPlan

from . import breakpoints
from .channel import SupervisorChannel
from .replica_main import end_unreported, run
from .role import CommonState, DescriptorLayout, Role, framework_entry, loader
from .settling import watch_by_thread

__all__ = ["main"]


def main(channel: int, lifeline: int, stacks: int) -> None:
    """Run the replica in the fresh interpreter, from its first line on; never return."""
    timeline = Timeline(born=time.monotonic_ns())
    keep_from_exec((channel, lifeline, stacks))
    finalisation.begin()
    try:
        layout = DescriptorLayout(channel, lifeline, stacks)
        role = _receive(layout, timeline)
        _inside.install(role.info, None, role.common.channel, key=role.common.order.key)
        run(role)
    except BaseException:
        end_unreported(channel)


def _receive(layout: DescriptorLayout, timeline: Timeline) -> Role:
    """Receive the order and take the launcher's state. Return the role of this replica."""
    connection = Connection(layout.channel)
    (order, plan, variables), received = connection.expect(FreshReplicaOrder)
    channel = SupervisorChannel(connection, plan.local_rank)
    plans = order.host.replicas
    records = Records(received[0], thread_replicas.count(plans), plans[0].rank)
    os.close(received.pop(0))
    image = order.take_image(received)
    tracker = received.pop(0) if order.call.state.tracker else None
    launcher_state.apply(launcher_state.with_variables(order.call.state, variables), tracker)
    environment_changes.replace_environment(variables)
    launcher_mark.leave(variables.get(launcher_mark.VARIABLE, ""))
    linux.set_name(f"xmp-replica-{plan.rank}")  # exec has set the interpreter's name
    _settle_again(order, plan, layout)
    if order.call.logging is not None:
        from xmp._processes.messages import logging_setup

        logging_setup.apply(order.call.logging)
    breakpoints.install()
    if order.call.cell:
        from . import notebook

        notebook.install()
    leases = dict(zip(order.leases, received, strict=False)) if plan.local_rank == 0 else {}
    reporter = channel if order.reports_phases else None
    if reporter is not None:
        reporter.report_phase("importing")
    enter = framework_entry(order.framework, False, reporter)
    load_call = loader(
        image, received[len(leases) :], reporter, order.call.main, order.call.logging
    )
    common = CommonState(order, layout, channel, enter, load_call, records, leases)
    return Role.of(common, plan, timeline)


def _settle_again(order: LaunchOrder, plan: ReplicaPlan, layout: DescriptorLayout) -> None:
    """Restore the state that exec has reset, and do what the parent does for a forked replica."""
    if not linux.arm(layout.lifeline):
        watch_by_thread(layout.lifeline)  # the thread that was started before exec is gone
    launcher_state.restore_signals(order.call.state)
    enable_stacks(layout.stacks)
    if plan.threads and "OMP_NUM_THREADS" not in os.environ:
        thread_pools.set_threads(plan.threads)
    if order.settings.output is not None:
        from xmp._processes.system.stdio import buffer_lines

        buffer_lines()
