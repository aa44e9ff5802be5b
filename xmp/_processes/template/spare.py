"""The spare: a fork server's child, rehearsed while idle, that waits to be the next supervisor.

A fork pays 3 µs for each page that it is the first to write to. The rehearsal touches the pages
that every supervisor's start touches. A warm spawn of eight replicas takes 106 ms with the spare,
117 ms without its rehearsal, 122 ms without the spare (medians of four interleaved runs on two
cores, 2026-11-22).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from xmp._processes.messages import launcher_state
from xmp._processes.messages.connection import Closed, Connection, pair
from xmp._processes.messages.fork_server import ForkRequest, ForkSupervisor
from xmp._processes.messages.launch import StartLaunch
from xmp._processes.messages.order import LaunchOrder, PackedCall
from xmp._processes.output.streams import Outlets, Sink
from xmp._processes.replica import seeding
from xmp._processes.replica.channel import SupervisorChannel
from xmp._processes.replica.role import CommonState, DescriptorLayout, Role, framework_entry
from xmp._processes.supervisor.replica_handle import ReplicaHandle
from xmp._processes.system import fork_safety, linux, processes
from xmp._processes.system.records import Records
from xmp._words.types import ForkRules, HostPlan, ReplicaPlan, Settings

__all__ = ["Become", "Spare"]


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
    channel, records = SupervisorChannel(ours), Records.new(1)
    common = CommonState(order, layout, channel, enter, lambda: (print, (), {}), records)
    Role.of(common, plan, replica.timeline)
    ends.close()
    os.close(records.descriptor)
    for connection in (ours, theirs):
        connection.close()
    replica.close()


Become = Callable[[ForkRequest, list[int]], NoReturn]
"""The function that turns a fresh child into the requested process: (request, descriptors)."""


class Spare:
    """The server's handle on its waiting child; there may be none."""

    def __init__(self) -> None:
        self.pid = 0
        self.wanted = False
        """Whether a spare should be forked as soon as the server is idle."""
        self._connection: Connection | None = None

    def fork(self, fork: Callable[[], int], become: Become) -> None:
        """Fork a spare; the server's ``fork`` closes the server's descriptors in the child."""
        self.wanted = False  # if the fork fails, none is tried until a launch has ended
        ours, theirs = pair()
        try:
            pid = fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            ours.close()
            _wait(theirs, become)
        theirs.close()
        self.pid, self._connection = pid, ours

    def give(self, request: ForkSupervisor, descriptors: list[int]) -> int:
        """Give the spare a request. Return its pid, or 0 if there is none or it cannot serve."""
        pid, connection = self.pid, self._connection
        if connection is None:
            return 0
        try:
            if processes.is_stopped(pid):
                processes.kill(pid)
                pid = 0
            else:
                connection.send(request, descriptors)
        except Closed:  # it was killed; the server reaps it
            pid = 0
        self._forget()
        return pid

    def replace(self) -> None:
        """End the spare, if there is one: it lacks modules that the server now imports."""
        if self._connection is not None:
            processes.kill(self.pid)
            self._forget()
            self.wanted = True

    def launch_has_ended(self) -> None:
        """Want a new spare if the launch has used the last one: the next launch should find it."""
        self.wanted = self._connection is None

    def has_ended(self, pid: int) -> None:
        """Note that a child has ended, which may be the spare."""
        if pid == self.pid:
            self._forget()

    def close(self) -> None:
        """Close this end, also in other children: the spare must see the end of the server."""
        if self._connection is not None:
            self._connection.close()

    def _forget(self) -> None:
        self.close()
        self.pid, self._connection = 0, None


def _wait(connection: Connection, become: Become) -> NoReturn:
    """Wait, in the spare, and become the supervisor of the next request."""
    try:
        linux.set_name("xmp-spare")
        linux.continue_on_hang_up(connection.fileno(), os.getpid())
        with suppress(Exception):  # it only saves time; a request may be here already
            rehearse()
        request, descriptors = connection.expect(ForkSupervisor)
    except BaseException:  # the server no longer needs it
        os._exit(0)
    connection.close()
    become(request, descriptors)
    os._exit(1)
