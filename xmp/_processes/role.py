"""Who a replica is, where its descriptors lie, and how it enters its framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xmp._types import Framework, ReplicaInfo, ReplicaPlan

from . import identity, kernel, mates, randomness
from .account import Timeline
from .channel import Channel
from .order import Order

if TYPE_CHECKING:
    from .pulse import Pulse

__all__ = ["Enter", "Role", "Seat", "entrance"]

Enter = Callable[[ReplicaInfo], "Framework | None"]


@dataclass(frozen=True)
class Seat:
    """Where a replica's descriptors lie; the supervisor's own lie from ``above`` up."""

    channel: int
    lifeline: int
    stacks: int
    gate: int = -1
    """End-of-file here says that the first batch of replicas has been made; -1: nobody waits."""

    @classmethod
    def free(cls) -> Seat:
        """Behind everything that is open here."""
        first = kernel.highest_descriptor() + 1
        return cls(first, first + 1, first + 2, first + 3)

    @property
    def above(self) -> int:
        """The first number that is not the replica's."""
        return self.gate + 1


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
    gate: int
    streams: randomness.OwnStreams | None = None
    """None in a fresh interpreter, and where the user gave a seed."""
    speaker: int = -1
    """Whose failure is told, where it is not the first replica of this process."""
    pulse: Pulse | None = None
    """Where the supervisor shall see that this replica gets on."""

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
            local_world_size=mates.count(order.host.replicas),
            host_index=order.host.index,
            runtime=order.runtime,
            device=plan.device,
            restart_count=order.restart_count,
            settings=dict(plan.settings),
            descriptors=leases if plan.local_rank == 0 else {},
        )
        who = identity.Identity(order.state, plan.rank, seat.lifeline)
        return cls(order, plan, info, who, channel, timeline, enter, seat.gate)


def entrance(framework: str, forked: bool, told: Channel | None = None) -> Enter:
    """The function with which a replica enters its framework, if it has one.

    For ``forked`` replicas the framework may do here, in their parent, what is the same for all.
    ``told`` is where a replica says that it begins.
    """
    if not framework:
        return lambda info: None
    module: Any = importlib.import_module(framework)
    prepare = getattr(module, "prepare", None) if forked else None
    enter: Enter = prepare() if prepare is not None else module.enter
    return enter if told is None else _announced(enter, told)


def _announced(enter: Enter, channel: Channel) -> Enter:
    def say_and_enter(info: ReplicaInfo) -> Framework | None:
        channel.tell_phase("joining")
        return enter(info)

    return say_and_enter
