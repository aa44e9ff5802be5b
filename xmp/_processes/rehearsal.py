"""What a waiting spare does: touch, while nobody waits, what every launch will touch.

A fork pays 3 µs for each page that it is the first to write into.
"""

from __future__ import annotations

import os

from xmp._types import ForkRules, HostPlan, ReplicaPlan

from . import randomness, safety, state
from .channel import Channel
from .members import Member
from .order import Order
from .output import Outlets, Sink
from .role import Role, Seat, entrance
from .wire import pair

__all__ = ["rehearse"]


def rehearse() -> None:
    """Go through a supervisor's start, to the point where it would fork.

    Nothing of it lasts: the process is told to be what it is already.
    """
    rules = ForkRules()
    safety.connected_sockets()
    safety.culprits(rules)
    randomness.OwnStreams()
    own, tracker = state.capture()
    plan = ReplicaPlan(0, 0, 0, set=(("XMP_REHEARSAL", "1"),))
    order = Order(
        host=HostPlan(0, "", (plan,)), world_size=1, runtime="", framework="", state=own,
        main=None, rules=rules, method="fork", image_data=b"", image_size=0,
        touches_device=False, leases=(), grace=0.0, called=0,
    )  # fmt: skip
    ours, theirs = pair()
    ours.send(order, [])
    order, _ = theirs.recv()
    state.apply(order.state, tracker)
    state.restore_signals(order.state)
    seat = Seat.free()
    member, ends = Member.prepare(plan, seat, Outlets(Sink(2)))
    enter = entrance("", forked=True)
    Role.of(order, plan, seat, {}, Channel(ours), member.timeline, enter)
    for descriptor in ends:
        os.close(descriptor)
    for wire in (ours, theirs):
        wire.close()
    member.close()
