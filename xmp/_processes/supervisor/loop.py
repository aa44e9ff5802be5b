"""The supervisor's loop: waits in one selector for messages, output, ends and deadlines.

``message_handlers`` has the function for each message, ``monitor`` carries out what follows from
it, and ``_rules.watch`` decides. The loop must react within a deadline whatever the replicas, the
launcher or the terminal do, so it follows these rules:

**One thread.** The replicas' PR_SET_PDEATHSIG comes when the *thread* that forked them ends, and a
fork copies the state of its parent. So the thread that made the replicas also runs the loop, until
the last of them has ended, and the supervisor starts no other.

**It waits in the selector alone**, except for the rest of a message of the launcher, which is
trusted, for stacks (at most 0.5 s), and for the last report. Other messages are posted, and sent as
far as the receiver takes them; the selector wakes the loop when it takes more. A slow reader of the
launcher's stream stops neither deadlines nor the other replicas: a full sink only stops the reading
of its sources (``output.streams``). From a replica the loop reads one packet a turn, so that half a
message holds nothing up. The selector is epoll, since ``select.select`` refuses descriptors above
1,023; epoll refuses regular files, which never block for long and are written to directly.

**The launcher's end** is seen in two ways: as end-of-file on the lifeline, and by a pidfd. A child
of the launcher may hold a copy of the lifeline's other end, which then stays open (measured: the
supervisor was not told within 4 s). Forks by Python close it (``os.register_at_fork``), those by C
libraries do not. Where there are no pidfds, the lifeline has to do. A *stopped* supervisor sees
neither, so a hang-up of the lifeline continues it (``linux.look_after``). The launcher watches the
deadlines too, since those of a supervisor that is stuck or stopped never pass.

**The end of a replica** is noticed by SIGCHLD and its wake-up descriptor, not by pidfds, which
Linux before 5.3 and Docker's seccomp profile before 20.10 do not have. SIGCHLD also comes for
orphans, which the supervisor adopts as a subreaper. One signal may stand for several ends, so the
loop reaps until none is left. ``waitid`` with WNOWAIT finds a child and leaves it a zombie; as long
as it is one, no other process can have its pid or its group's number. Before it is reaped,
therefore, its group is killed, and the packets that it has sent are read: the kernel names their
sender by its pid (SO_PASSCRED), and a later process with that pid would be taken for the replica.

**A replica is not trusted.** Nothing that it sends is unpickled, and no file that it has chosen is
read: a child that a replica had started as another user could otherwise run code in a supervisor of
root. A message must be well-formed and possible for its sender (``message_checks``). A replica that
sends anything else is killed, and the failure says why; a wrong message of a child is dropped,
since the launch does not depend on children.

**Progress is not sent.** Replicas write their records into shared memory, which the loop reads
when a deadline has passed, and a few times within XMP_HANG_NOTICE (``hang_watch``). A time in the
future counts as now; otherwise a replica that has written one would never hang.

Invariants: all times are monotonic; a failure is acted on when its record arrives, a success counts
when the process has ended; the last message to the launcher is ``Done``, sent when every replica
and what it has left has ended, and all output has been written.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from xmp._processes.messages.connection import Closed, Connection
from xmp._processes.messages.launch import ProgressMade
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.messages.plain_format import Malformed
from xmp._processes.system import linux, processes
from xmp._processes.system.descriptors import move_above
from xmp._processes.system.processes import drain, wake_on_ends
from xmp._rules.watch_events import Progress, Tick

from .hang_watch import HangWatch
from .message_checks import check
from .message_handlers import launcher_requests, replica_messages
from .monitor import Monitor
from .replica_handle import ReplicaHandle

if TYPE_CHECKING:
    from xmp._processes.replica.heartbeat import HostProgress
    from xmp._processes.system.records import Records

__all__ = ["OwnDescriptors", "SupervisorLoop"]

_MOST_PACKETS = 1024
"""More packets than a socket's buffer holds: any behind them were sent after the replica's end."""


@dataclass(frozen=True)
class OwnDescriptors:
    """Descriptors that no replica keeps: above its own, so that one call in it closes them all."""

    connection: Connection
    """The connection to the launcher."""
    lifeline: int
    """A pipe that ends when the launcher is gone."""
    replicas_lifeline: int
    """A pipe that the replicas watch; its other end stays open as long as this process lives."""
    wakeup: int
    """A pipe that is readable when a child has ended."""

    @classmethod
    def move_above(cls, above: int, connection: Connection, lifeline: int) -> OwnDescriptors:
        """Move connection and lifeline, and make the others; SIGCHLD is received from now on."""
        connection = connection.moved(above)
        connection.opens_pickles = False  # the order was the last pickle
        lifeline = move_above(lifeline, above)
        watched, _ = (move_above(end, above) for end in os.pipe())
        # A child of Python's os.fork() forgets signals that came before its first steps; a blocked
        # one stays pending, also across exec, until the replica can report it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return cls(connection, lifeline, watched, wake_on_ends(above)[0])


class SupervisorLoop:
    """The loop, from the last fork to the last report."""

    def __init__(
        self,
        order: LaunchOrder,
        monitor: Monitor,
        own: OwnDescriptors,
        records: Records,
    ) -> None:
        self._monitor = monitor
        self._connection = own.connection
        self._wakeup = own.wakeup
        self._records = records if order.settings.hang or order.settings.stays else None
        self._hangs = HangWatch(monitor, records, order)
        self._progress: HostProgress | None = None
        if order.settings.hang and order.several_hosts:
            from xmp._processes.replica.heartbeat import HostProgress

            post = self._connection.post
            self._progress = HostProgress(order.settings.hang, lambda: post(ProgressMade()))
        self._by_pid = {replica.pid: replica for replica in monitor.replicas}
        self._loop = monitor.loop
        self._pump = monitor.pump
        self._requests = launcher_requests(monitor)
        self._messages = replica_messages(monitor)
        if order.settings.stays:
            from .gang_calls import GangCalls  # see there

            monitor.calls = calls = GangCalls(monitor, self._hangs)
            calls.add_to(self._requests, self._messages)
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
        while self._monitor.watch.phase != "done" or self._pump.waiting:
            due = self._due()
            self._loop.turn(None if due is None else max(0, due - time.monotonic_ns()) / 1e9)
            now, due = time.monotonic_ns(), self._due()
            if due is not None and now >= due:
                self._hangs.look(now)
                self._read_heartbeats()
            self._monitor.feed(Tick(now))
            if self._monitor.meetings is not None:
                self._monitor.meetings.look(now, self._monitor.watch.is_paused)
            if self._monitor.calls is not None:
                self._monitor.calls.look(now)
                self._monitor.calls.report()
            self._write_out()
        self._monitor.report()

    def _due(self) -> int | None:
        """Return when a deadline passes, or progress is to be reported; None if neither is due."""
        monitor = self._monitor
        meeting = None if monitor.meetings is None else monitor.meetings.due()
        stuck = None if monitor.calls is None else monitor.calls.due
        dues = [monitor.watch.deadline, self._hangs.due, meeting, stuck]
        if dues[0] is not None:
            dues.append(None if self._progress is None else self._progress.due)
        elif monitor.watch.is_paused:
            return None
        return min((due for due in dues if due is not None), default=None)

    def _read_heartbeats(self) -> None:
        """Read, when a deadline has passed, which replicas have made progress meanwhile."""
        if self._records is None:
            return
        newest = 0
        waited = self._hangs.last_work()
        for replica in self._monitor.replicas:
            at = 0 if replica.ended else self._records.last_progress(replica.plan.local_rank)
            if at > 0 and waited is not None:
                at = waited  # others stand in a collective: running Python alone is no progress
            if at > 0:
                newest = max(newest, min(at, time.monotonic_ns()))
                self._monitor.feed(Progress(replica.rank, min(at, time.monotonic_ns())))
        if self._progress is not None:
            self._progress.look(newest, time.monotonic_ns())

    def _write_out(self) -> None:
        """Send what the receivers take now, and have the loop wake up when they take more."""
        self._monitor.post_events()
        if self._monitor.displays is not None:
            self._monitor.displays.pass_on()
        live = [replica.connection for replica in self._monitor.replicas if not replica.ended]
        waiting = [*(each for each in live if each.waiting), *self._monitor.voices.waiting()]
        for connection in (self._connection, *waiting):
            try:
                wants = not connection.flush()
            except Closed:
                wants = False  # the end itself is noticed elsewhere: see above
            self._loop.wake_for_write(connection.fileno(), wants)
        self._pump.write_out()

    def _hear_launcher(self) -> None:
        try:
            message, descriptors = self._connection.recv()
        except Closed:
            self._launcher_gone()
        self._requests.handle(message, descriptors)

    def _launcher_gone(self) -> NoReturn:
        """End everything and exit: no process is left to report to."""
        for replica in self._monitor.replicas:
            replica.signal(signal.SIGKILL, group=True)
        processes.end_descendants()
        for replica in self._monitor.replicas:
            for source in replica.sources:
                source.drain()  # into its log, if there is one
        os._exit(1)

    def _hear(self, replica: ReplicaHandle) -> None:
        """Read one packet, and handle the message that it completes, if any."""
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
            if arrived is None or not arrived.by_child:
                self._monitor.condemn(replica, str(why))
        except OSError as error:  # the request needs a descriptor, and none is left
            self._monitor.condemn(replica, f"it cannot be carried out: {error}")

    def _woken(self) -> None:
        drain(self._wakeup)
        self._reap()

    def _reap(self) -> None:
        while (pid := processes.next_ended()) is not None:
            replica = self._by_pid.get(pid)
            if replica is not None and not replica.ended:
                replica.signal(signal.SIGKILL, group=True)
                self._drain(replica)  # both while it is a zombie: see above
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
        """Read all that an ended replica has sent and written."""
        for _ in range(_MOST_PACKETS):
            heard = self._loop.listens(replica.connection.fileno())
            if not heard or not replica.connection.readable():
                break
            self._hear(replica)
        self._loop.forget(replica.connection.fileno())
        for source in replica.sources:
            self._pump.end(source)
