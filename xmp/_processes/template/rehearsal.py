"""A spare's rehearsal, which touches the pages that every supervisor's start touches.

A fork pays 3 µs for each page that it is the first to write to.
"""

from __future__ import annotations

from xmp._processes.messages import launcher_state
from xmp._processes.messages.connection import pair
from xmp._processes.messages.launch import StartLaunch
from xmp._processes.messages.order import LaunchOrder, PackedCall
from xmp._processes.output.streams import Outlets, Sink
from xmp._processes.replica import seeding
from xmp._processes.replica.channel import SupervisorChannel
from xmp._processes.replica.role import CommonState, DescriptorLayout, Role, framework_entry
from xmp._processes.supervisor.replica_handle import ReplicaHandle
from xmp._processes.system import fork_safety
from xmp._words.types import ForkRules, HostPlan, ReplicaPlan, Settings

__all__ = ["rehearse"]


def rehearse() -> None:
    """Go through a supervisor's start, up to the point where it would fork.

    It has no lasting effect: the state that is applied is the process's own.
    """
    rules = ForkRules()
    fork_safety.connected_sockets()
    fork_safety.culprits(rules)
    seeding.OwnStreams()
    own, tracker = launcher_state.capture()
    plan = ReplicaPlan(0, 0, 0, set=(("XMP_REHEARSAL", "1"),))
    call = PackedCall("", "", b"", 0, False, own, None, None)
    order = LaunchOrder(
        host=HostPlan(0, "", (plan,)), world_size=1, runtime="", framework="", env_by_rank=(),
        settings=Settings(), call=call, rules=rules, method="fork", leases=(), called=0,
    )  # fmt: skip
    ours, theirs = pair()
    ours.send(StartLaunch(order), [])
    (order,), _ = theirs.expect(StartLaunch)
    launcher_state.apply(order.call.state, tracker)
    launcher_state.restore_signals(order.call.state)
    layout = DescriptorLayout.free()
    replica, ends = ReplicaHandle.prepare(plan, layout, Outlets(Sink(2)))
    enter = framework_entry("", forked=True)
    common = CommonState(order, layout, SupervisorChannel(ours), enter, lambda: (print, (), {}))
    Role.of(common, plan, replica.timeline)
    ends.close()
    for connection in (ours, theirs):
        connection.close()
    replica.close()
