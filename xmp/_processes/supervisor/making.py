"""Makes the replicas: prepares their common state once, then forks them in batches."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from xmp import _inside
from xmp._processes.messages import thread_replicas
from xmp._processes.messages.connection import Closed, Connection, pair
from xmp._processes.messages.replica import FreshReplicaOrder
from xmp._processes.messages.timeline import Timeline
from xmp._processes.output.streams import Outlets
from xmp._processes.replica import mp_identity, seeding
from xmp._processes.replica.channel import SupervisorChannel
from xmp._processes.replica.exit import has_exit_handlers
from xmp._processes.replica.replica_main import be_replica
from xmp._processes.replica.role import (
    Changes,
    CommonState,
    DescriptorLayout,
    LoadedCall,
    Role,
    framework_entry,
    loader,
)
from xmp._processes.replica.settling import ForkState
from xmp._processes.system import (
    environment_changes,
    launcher_mark,
    linux,
    processes,
)
from xmp._processes.system.births import Birth
from xmp._processes.system.descriptors import move_above
from xmp._processes.system.launch_conditions import limits
from xmp._processes.system.records import Records
from xmp._words.types import ReplicaPlan

from .loading import Received
from .replica_handle import ReplicaHandle

__all__ = ["ReplicaMaker"]

_BATCH = 16


@dataclass
class ReplicaMaker:
    """The maker of the launch's replicas: of every one, or of none."""

    received: Received
    call: LoadedCall | None
    timeline: Timeline
    """The stages that are the same for all replicas."""
    layout: DescriptorLayout
    outlets: Outlets
    replicas: list[ReplicaHandle] = field(default_factory=list)
    records: Records | None = None

    def make_all(self, lifeline: int) -> None:
        """Make all replicas, in batches that are prepared first and then forked.

        Every page that is written between two forks is copied.
        """
        plans = self.received.order.host.replicas
        environments = _prepare_environment(plans)
        # Above the layout: no forked replica keeps the descriptor.
        records = Records.new(thread_replicas.count(plans), plans[0].rank, self.layout.above)
        self.records = records
        with linux.preferred_victims():
            common = self._common_state(records)
            unfinished = _open_first_batch(self.layout)
            parent = ForkState(os.getpid(), lifeline, has_exit_handlers())
            for start in range(0, len(plans), _BATCH):
                batch = []
                for plan in plans[start : start + _BATCH]:
                    replica, ends = ReplicaHandle.prepare(plan, self.layout, self.outlets)
                    replica.timeline = replace(self.timeline)
                    batch.append((Role.of(common, plan, replica.timeline), replica, ends))
                _inside.install(batch[0][0].info, None, common.channel, key=common.order.key)
                gc.freeze()  # or each replica would finish this `with`, and look at it all
                for role, replica, ends in batch:
                    birth = Birth(above=self.layout.above)
                    role.timeline.forked = replica.forked = time.monotonic_ns()
                    replica.pid = linux.fork()
                    if replica.pid == 0:
                        be_replica(role, parent, ends, environments[replica.rank])
                    replica.birth = birth.keep(replica.pid)
                    self.replicas.append(replica)
                if start == 0:
                    os.close(
                        unfinished
                    )  # now replicas may end: with hundreds alive a fork costs more
                _inside.uninstall()
                for _, _, ends in batch:
                    ends.close()
            common.channel.close()

    def _common_state(self, records: Records) -> CommonState:
        received, layout, call = self.received, self.layout, self.call
        order = received.order
        ours, theirs = pair()
        os.dup2(theirs.fileno(), layout.channel, inheritable=False)
        channel = SupervisorChannel(Connection(layout.channel))
        forked = order.method != "exec"
        reporter = channel if order.reports_phases else None
        enter = framework_entry(order.framework if forked else "", forked, reporter)
        ours.close()
        theirs.close()
        load = loader(received.image, received.arguments, reporter)
        return CommonState(
            order=order,
            layout=layout,
            channel=channel,
            enter=enter,
            load=load if call is None else lambda: call,
            leases=received.leases,
            records=records,
            streams=seeding.OwnStreams() if forked and order.settings.seed is None else None,
            after_fork=mp_identity.after_fork(),
        )

    def send_orders(self) -> None:
        """Send the fresh interpreters the state that forked replicas would have inherited."""
        received = self.received
        assert self.records is not None
        image = [received.image.descriptor] if received.order.has_file else []
        tracker = [received.tracker] if received.tracker is not None else []
        for replica in self.replicas:
            variables = {k: v for k, v in os.environ.items() if k not in replica.plan.unset}
            variables.update(replica.plan.set)
            leases = list(received.leases.values()) if replica.plan.local_rank == 0 else []
            descriptors = [self.records.descriptor, *image, *tracker, *leases, *received.arguments]
            with contextlib.suppress(Closed):  # it was killed: its wait status says so
                order = FreshReplicaOrder(received.order, replica.plan, variables)
                replica.connection.send(order, descriptors)

    def give_up(self, error: BaseException) -> str:
        """Kill the replicas that were made. Return which one could not be made, and why."""
        for replica in self.replicas:
            replica.signal(signal.SIGKILL, group=True)
        processes.end_descendants()
        count = len(self.received.order.host.replicas)
        return (
            f"replica {len(self.replicas)} of {count} could not be started: {error}\n"
            f"{limits()}. Raise the one that was reached, or start fewer replicas."
        )


def _prepare_environment(plans: Sequence[ReplicaPlan]) -> dict[int, Changes]:
    """Make the changes that all replicas have in common. Return each rank's own changes."""
    changes = {p.rank: {*{**dict.fromkeys(p.unset), **dict(p.set)}.items()} for p in plans}
    common = set.intersection(*changes.values())
    environment_changes.change_environment(
        environment_changes.encoded([*common, *launcher_mark.variable()])
    )
    return {rank: environment_changes.encoded(own - common) for rank, own in changes.items()}


def _open_first_batch(layout: DescriptorLayout) -> int:
    """Return a pipe's end to be closed when the first batch is made; replicas get the other end."""
    waits, unfinished = (move_above(end, layout.above) for end in os.pipe())
    os.dup2(waits, layout.batch_made, inheritable=False)
    os.close(waits)
    return unfinished
