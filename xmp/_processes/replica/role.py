"""The data that a replica gets at its start: descriptor numbers, shared state, its own plan."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from xmp._payload import Image, load
from xmp._payload.script import MainSource, import_main
from xmp._processes.messages import thread_replicas
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.messages.timeline import Timeline
from xmp._processes.system.descriptors import close_all, highest_descriptor
from xmp._words.framework import Framework
from xmp._words.replica_info import ReplicaInfo
from xmp._words.types import ReplicaPlan

from . import mp_identity, seeding
from .channel import SupervisorChannel

if TYPE_CHECKING:
    from xmp._processes.messages.logging_setup import LoggingSetup
    from xmp._processes.system.records import Records

__all__ = [
    "Changes", "ChildEnds", "CommonState", "DescriptorLayout", "Enter", "LoadedCall", "Role",
    "framework_entry", "loader",
]  # fmt: skip

LoadedCall = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]
"""The user's function with its arguments."""
Changes = list[tuple[bytes, "bytes | None"]]
"""Changes of the environment, as ``environment_changes.encoded`` makes them."""
Enter = Callable[[ReplicaInfo], "Framework | None"]


@dataclass(frozen=True)
class DescriptorLayout:
    """The numbers of a replica's descriptors; the supervisor's own are ``above`` or higher."""

    channel: int
    lifeline: int
    stacks: int
    batch_made: int = -1
    """A pipe that ends when the first batch of replicas has been made; -1: do not wait for it."""

    @classmethod
    def free(cls) -> DescriptorLayout:
        """Return a layout of the numbers after the highest that is open here."""
        first = highest_descriptor() + 1
        return cls(first, first + 1, first + 2, first + 3)

    @property
    def above(self) -> int:
        """The first number that is not the replica's."""
        return self.batch_made + 1


class ChildEnds(NamedTuple):
    """A replica's descriptors before it moves them to their numbers; all are above the layout."""

    channel: int
    stacks: int
    """The parent's descriptor; the child duplicates it."""
    streams: tuple[int, ...]
    """Standard error, and standard output if it is captured."""

    def close(self) -> None:
        """Close, in the parent after the fork, the descriptors that only the child uses."""
        close_all((self.channel, *self.streams))


@dataclass
class CommonState:
    """The state that the parent prepares for all replicas of this host.

    A page that a fork writes first costs it 3 µs and 4 KB, so everything that is the same for all
    replicas is made before the fork.
    """

    order: LaunchOrder
    layout: DescriptorLayout
    channel: SupervisorChannel
    enter: Enter
    load: Callable[[], LoadedCall]
    """A function that returns the call; it loads it if the parent has not."""
    records: Records
    leases: dict[str, int] = field(default_factory=dict)
    """The descriptors of leased ports, by the port's name: for the first replica of the host."""
    streams: seeding.OwnStreams | None = None
    """None in a fresh interpreter, or if the user gave a seed."""
    after_fork: mp_identity.AfterFork | None = None


@dataclass
class Role:
    """One replica: its plan and the objects that were made for it alone."""

    common: CommonState
    plan: ReplicaPlan
    info: ReplicaInfo
    identity: mp_identity.ReplicaIdentity
    timeline: Timeline
    failing_rank: int = -1
    """The rank of the thread replica that fails; -1: the first replica of this process."""

    @classmethod
    def of(cls, common: CommonState, plan: ReplicaPlan, timeline: Timeline) -> Role:
        order = common.order
        info = ReplicaInfo(
            rank=plan.rank,
            local_rank=plan.local_rank,
            world_size=order.world_size,
            local_world_size=thread_replicas.count(order.host.replicas),
            host_index=order.host.index,
            runtime=order.runtime,
            device=plan.device,
            restart_count=order.settings.restart_count,
            settings=dict(plan.settings),
            descriptors=common.leases if plan.local_rank == 0 else {},
        )
        identity = mp_identity.ReplicaIdentity(
            order.call.state, plan.rank, common.layout.lifeline, common.after_fork
        )
        return cls(common, plan, info, identity, timeline)


def framework_entry(
    framework: str, forked: bool, channel: SupervisorChannel | None = None
) -> Enter:
    """Return the function with which a replica enters its framework, if it has one.

    If ``forked``, the framework may do the work that is the same for all replicas here, in the
    parent. With a ``channel``, the replica reports there that it joins the others.
    """
    if not framework:
        return lambda info: None
    module: Any = importlib.import_module(framework)
    prepare = getattr(module, "prepare", None) if forked else None
    enter: Enter = prepare() if prepare is not None else module.enter
    if channel is None:
        return enter

    def report_and_enter(info: ReplicaInfo) -> Framework | None:
        channel.report_phase("joining")
        return enter(info)

    return report_and_enter


def loader(
    image: Image,
    arguments: list[int],
    channel: SupervisorChannel | None,
    script: MainSource | None = None,
    logging: LoggingSetup | None = None,
) -> Callable[[], LoadedCall]:
    """Return a function that loads the call in a replica, after the script if there is one.

    With a ``channel`` it reports the phase. The set-up of ``logging`` is applied again afterwards:
    libraries set levels when they are imported.
    """

    def load_call() -> LoadedCall:
        if channel is not None:
            channel.report_phase("importing")
        if script is not None:
            import_main(script)
        call = load(image, arguments)
        if logging is not None:
            from xmp._processes.messages import logging_setup

            logging_setup.apply(logging)
        return call

    return load_call
