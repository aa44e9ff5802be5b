"""The supervisor's loop: waits in one selector for messages, output, ends and deadlines.

``handlers`` has what each message does, ``monitor`` what follows from it.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from xmp._processes.messages.connection import Closed
from xmp._processes.messages.launch import ProgressMade
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.messages.plain_format import Malformed
from xmp._processes.system import linux, processes
from xmp._rules.events import Progress, Tick

from .checks import check
from .descriptors import OwnDescriptors, drain
from .handlers import launcher_requests, replica_messages
from .monitor import Monitor
from .replica_handle import ReplicaHandle

if TYPE_CHECKING:
    from xmp._processes.replica.heartbeat import Heartbeats

    from .host_progress import HostProgress

__all__ = ["SupervisorLoop"]

_MOST_PACKETS = 1024
"""More than a socket's buffer holds: what is behind them was sent after the replica's end."""


class SupervisorLoop:
    """Runs from the last fork to the last report."""

    def __init__(
        self,
        order: LaunchOrder,
        monitor: Monitor,
        own: OwnDescriptors,
        heartbeats: Heartbeats | None,
    ) -> None:
        self._monitor = monitor
        self._connection = own.connection
        self._wakeup = own.wakeup
        self._heartbeats = heartbeats
        self._progress: HostProgress | None = None
        if heartbeats is not None and order.several_hosts:
            from .host_progress import HostProgress

            post = self._connection.post
            self._progress = HostProgress(order.settings.hang, lambda: post(ProgressMade()))
        self._by_pid = {replica.pid: replica for replica in monitor.replicas}
        self._loop = monitor.loop
        self._pump = monitor.pump
        self._requests = launcher_requests(monitor)
        self._messages = replica_messages(monitor)
        self._loop.listen(own.connection.fileno(), self._hear_launcher)
        self._loop.listen(own.lifeline, self._launcher_gone)
        self._loop.listen(own.wakeup, self._woken)
        launcher = linux.open_pidfd(order.call.state.pid)
        if launcher is not None:
            self._loop.listen(launcher, self._launcher_gone)
        for replica in monitor.replicas:
            replica.connection.owner = replica.pid
            self._loop.listen(replica.connection.fileno(), partial(self._hear, replica))
            for source in replica.sources:
                self._pump.add(source)

    def run(self) -> None:
        """Handle events until every replica has ended and everything has been reported."""
        self._reap()
        self._write_out()
        watch = self._monitor.watch
        while watch.phase != "done" or self._pump.waiting:
            due = self._due()
            self._loop.turn(None if due is None else max(0, due - time.monotonic_ns()) / 1e9)
            now, due = time.monotonic_ns(), self._due()
            if due is not None and now >= due:
                self._read_heartbeats()
            self._monitor.feed(Tick(now))
            self._write_out()
        self._monitor.report()

    def _due(self) -> int | None:
        """When a deadline passes, or progress is to be reported."""
        due = self._monitor.watch.deadline
        if self._progress is None or due is None:
            return due
        return min(due, self._progress.due)

    def _read_heartbeats(self) -> None:
        """A deadline has passed: which replicas have made progress meanwhile?"""
        if self._heartbeats is None:
            return
        newest = 0
        for replica in self._monitor.replicas:
            at = 0 if replica.ended else self._heartbeats.last(replica.plan.local_rank)
            if at > 0:
                # The replica writes it: a time to come would mean that it never hangs.
                newest = max(newest, min(at, time.monotonic_ns()))
                self._monitor.feed(Progress(replica.rank, min(at, time.monotonic_ns())))
        if self._progress is not None:
            self._progress.look(newest, time.monotonic_ns())

    def _write_out(self) -> None:
        """Send what the receivers take now; wake up when they take more."""
        self._monitor.post_events()
        if self._monitor.displays is not None:
            self._monitor.displays.pass_on()
        live = [replica.connection for replica in self._monitor.replicas if not replica.ended]
        waiting = [*(each for each in live if each.waiting), *self._monitor.voices.waiting()]
        for connection in (self._connection, *waiting):
            try:
                wants = not connection.flush()
            except Closed:
                wants = False  # the lifeline reports the launcher's end, SIGCHLD a replica's
            self._loop.wake_for_write(connection.fileno(), wants)
        self._pump.write_out()

    def _hear_launcher(self) -> None:
        try:
            message, descriptors = self._connection.recv()
        except Closed:
            self._launcher_gone()
        self._requests.handle(message, descriptors)

    def _launcher_gone(self) -> NoReturn:
        """No process is left to report to: end everything and exit."""
        for replica in self._monitor.replicas:
            replica.signal(signal.SIGKILL, group=True)
        processes.end_descendants()
        for replica in self._monitor.replicas:
            for source in replica.sources:
                source.drain()  # into its log, if there is one
        os._exit(1)

    def _hear(self, replica: ReplicaHandle) -> None:
        """Take in one packet, and what it completes; the rest of a message is not waited for."""
        arrived = None
        try:
            arrived = replica.connection.take()
            checked = check(arrived, replica) if arrived is not None else None
            if checked is not None:
                self._messages.handle(checked.message, replica, checked)
        except Closed:
            self._loop.forget(replica.connection.fileno())
            replica.hang_up()
        except Malformed as why:
            if arrived is None or not arrived.by_child:  # the launch depends on no child
                self._monitor.condemn(replica, str(why))
        except OSError as error:  # no descriptor is left for what the replica asks for
            self._monitor.condemn(replica, f"it cannot be carried out: {error}")

    def _woken(self) -> None:
        drain(self._wakeup)
        self._reap()

    def _reap(self) -> None:
        while (pid := processes.next_ended()) is not None:
            replica = self._by_pid.get(pid)
            if replica is not None and not replica.ended:
                # The zombie still keeps its group's number: no other process can have it yet.
                replica.signal(signal.SIGKILL, group=True)
                self._drain(replica)  # before another process can have its pid, and pass for it
            limits = processes.cpu_limits(pid)
            try:
                _, status, usage = os.wait4(pid, 0)
            except ChildProcessError:
                continue
            if replica is not None:
                now = time.monotonic_ns()
                why = processes.out_of_cpu_time(status, usage, limits)
                self._monitor.ended(replica, now, status, processes.peak_memory(usage), why)

    def _drain(self, replica: ReplicaHandle) -> None:
        """Take in what an ended replica has sent and written."""
        for _ in range(_MOST_PACKETS):
            heard = self._loop.listens(replica.connection.fileno())
            if not heard or not replica.connection.readable():
                break
            self._hear(replica)
        self._loop.forget(replica.connection.fileno())
        for source in replica.sources:
            self._pump.end(source)
