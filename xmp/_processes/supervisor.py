"""The supervisor: loads the call once and makes the replicas; then it watches over them (gang).

One per launch, single-threaded, forked from a template, a script holder or a keeper.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xmp import _inside
from xmp._payload import Image, load
from xmp._payload.script import import_main, main_is_shared

from . import (
    breakpoints,
    family,
    identity,
    kernel,
    marked,
    pools,
    randomness,
    replica,
    safety,
    state,
)
from .account import Timeline
from .channel import Channel
from .exceptions import pack_exception
from .gang import Gang
from .members import Member
from .order import Order
from .output import Outlets, Sink
from .role import Role, Seat, entrance
from .tracebacks import name_of, told, words_of
from .wire import Closed, Wire, pair

if TYPE_CHECKING:
    from .pulse import Pulse

__all__ = ["inherited", "main"]

_AT_ONCE = 16
inherited: list[Any] = []
"""Under ``start_method="fork"``: the call itself, put here by the launcher before it forks."""


def main(control: int, lifeline: int) -> None:
    """Be the supervisor of one launch; returns when everything of it has ended."""
    wire = Wire(control)
    kernel.arm(lifeline)
    kernel.subreaper()
    replica.forget_exit_handlers()
    order, descriptors = wire.recv()
    received = time.monotonic_ns()
    got = _Received.of(order, descriptors)
    supervisor = _Supervisor(wire, lifeline, order, got, received)
    if supervisor.load():
        supervisor.start().run()
    atexit._run_exitfuncs()


@dataclass
class _Received:
    """The descriptors that came with the order, by purpose."""

    streams: list[int]
    image: Image
    tracker: int | None
    leases: dict[str, int]
    arguments: list[int]

    @classmethod
    def of(cls, order: Order, descriptors: list[int]) -> _Received:
        streams, rest = descriptors[:3], descriptors[3:]
        image = order.take_image(rest)
        tracker = rest.pop(0) if order.state.tracker else None
        leases = dict(zip(order.leases, rest, strict=False))
        arguments = rest[len(leases) :]
        return cls(streams, image, tracker, leases, arguments)


@dataclass
class _Supervisor:
    wire: Wire
    lifeline: int
    order: Order
    got: _Received
    received: int = 0
    loaded: int = 0
    members: list[Member] = field(default_factory=list)
    call: replica.Call | None = None
    pulse: Pulse | None = None
    pulse_file: list[int] = field(default_factory=list)
    """Its descriptor, where fresh interpreters need one."""

    # --- loading -------------------------------------------------------------------------------

    def load(self) -> bool:
        """Become what the launcher is and load the call; False when it ends here."""
        order = self.order
        if order.method != "inherit":
            state.apply(order.state, self.got.tracker)
        state.take_streams(self.got.streams)
        breakpoints.install()
        if order.method == "exec":
            return True
        sockets = safety.connected_sockets()
        while_loading = state.while_loading(order.rules)
        os.environ.update(while_loading)
        try:
            self._load_call()
        except BaseException as error:
            self._refuse_load(error)
            return False
        culprits = safety.culprits(order.rules, sockets, order.method == "inherit")
        if culprits and order.method == "fork":
            self.wire.send(("unsafe", culprits))
            return False
        if order.method != "inherit":
            state.restore_environment(while_loading, order.state.environment)
        state.restore_signals(order.state)
        gc.freeze()  # a collection in a replica would unshare what was loaded here
        return True

    def _load_call(self) -> None:
        order = self.order
        if order.method == "inherit":
            main_is_shared(True)
            self.call = inherited[0]
        else:
            if order.main is not None and "__mp_main__" not in sys.modules:
                import_main(order.main)
            if not order.touches_device:
                self.call = load(self.got.image, self.got.arguments)
        if order.framework:
            importlib.import_module(order.framework)

    def _refuse_load(self, error: BaseException) -> None:
        words = f"{name_of(error)}: {words_of(error)}"
        self.wire.send(("failed", told(error), words, pack_exception(error)))

    # --- starting ------------------------------------------------------------------------------

    def start(self) -> Gang:
        """Make every replica, or none."""
        self.loaded = time.monotonic_ns()
        kernel.raise_descriptor_limit()
        self.seat = Seat.free()
        self._move_up()
        outlets = self._outlets()
        pools.pause()
        self._prepare_stacks()
        self._prepare_environment()
        self._prepare_pulse()
        try:
            with kernel.preferred_victims():
                self._make_all(outlets)
        except (OSError, MemoryError) as error:
            self._cannot_make(error)
        if self.order.method == "exec":
            self._send_orders()
        os.close(self.pipe[0])
        # What came with the arguments, the leases, under "inherit" whatever the launcher had
        # open: from now on end-of-file means what it says. Ours lie above.
        kernel.let_go((), below=self.seat.above)
        pids = [(member.rank, member.pid, member.forked) for member in self.members]
        self.wire.post(("started", os.getpid(), pids, self.received, self.loaded))
        return Gang(
            self.order, self.members, self.wire, self.lifeline, self.wakeup, outlets, self.pulse
        )

    def _outlets(self) -> Outlets:
        """Where the replicas' standard output and error go."""
        errors = Sink(kernel.move_above(os.dup(2), self.seat.above))
        if self.order.output is None:
            return Outlets(errors)
        from .capture import Capture, write_lines_at_once  # as below: only where it is wanted

        write_lines_at_once(inherited=self.order.method == "inherit")
        return Capture(errors, self.order.output, self.seat.above)

    def _prepare_stacks(self) -> None:
        """Let no replica die of a question for its stacks, however young it is."""
        if self.order.method == "exec":
            signal.signal(replica.DUMP_SIGNAL, signal.SIG_IGN)  # exec keeps what is ignored
        else:
            os.dup2(0, self.seat.stacks, inheritable=False)
            replica.enable_stacks(self.seat.stacks)  # each child puts its own file there

    def _prepare_environment(self) -> None:
        """Set what all replicas have in common before they are made; the rest is theirs to do."""
        plans = self.order.host.replicas
        common = set.intersection(*(set(plan.set) for plan in plans))
        gone = set.intersection(*(set(plan.unset) for plan in plans))
        state.change_environment(
            state.encoded([*((name, None) for name in gone), *common, *marked.variable()])
        )
        self.own = {
            plan.rank: state.encoded(
                [*((name, None) for name in set(plan.unset) - gone), *(set(plan.set) - common)]
            )
            for plan in plans
        }

    def _prepare_pulse(self) -> None:
        """Memory in which all replicas show that they get on, if anybody wants to know."""
        if not self.order.hang:
            return
        from .pulse import Pulse  # what a template has loaded costs every replica pages

        count = len(self.order.host.replicas)
        if self.order.method == "exec":
            self.pulse, descriptor = Pulse.file(count)
            self.pulse_file = [descriptor]
        else:
            self.pulse = Pulse(count)

    def _send_orders(self) -> None:
        """Give the fresh interpreters what forked replicas would have inherited."""
        tracker = [self.got.tracker] if self.got.tracker is not None else []
        file = [self.got.image.descriptor] if self.order.has_file else []
        for member in self.members:
            environment = {k: v for k, v in os.environ.items() if k not in member.plan.unset}
            environment.update(member.plan.set)
            leases = list(self.got.leases.values()) if member.plan.local_rank == 0 else []
            descriptors = [*self.pulse_file, *file, *tracker, *leases, *self.got.arguments]
            with contextlib.suppress(Closed):  # it was killed already: its wait status will tell
                member.wire.send((self.order, member.plan, environment), descriptors)

    def _move_up(self) -> None:
        """Our own descriptors lie above the replicas', so that one call closes them there."""
        above = self.seat.above
        self.wire = self.wire.moved(above)
        kernel.disarm(self.lifeline)
        self.lifeline = kernel.move_above(self.lifeline, above)
        self.pipe = tuple(kernel.move_above(end, above) for end in os.pipe())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A child of Python's os.fork() forgets the signals that came before its first steps; one
        # that is blocked waits, also across exec, until the replica can tell of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.wakeup, said = (kernel.move_above(end, above) for end in os.pipe())
        for end in (self.wakeup, said):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(said, warn_on_full_buffer=False)

    def _role(self, member: Member) -> Role:
        member.timeline = Timeline(self.order.called, self.received, self.loaded)
        leases, plan = self.got.leases, member.plan
        role = Role.of(
            self.order, plan, self.seat, leases, self.channel, member.timeline, self.enter
        )
        role.streams, role.identity.after_fork = self.streams, self.after_fork
        role.pulse = self.pulse
        return role

    def _prepare_roles(self) -> None:
        """Make what all replicas take over as it is."""
        ours, theirs = pair()
        os.dup2(theirs.fileno(), self.seat.channel, inheritable=False)
        self.channel = Channel(Wire(self.seat.channel))
        forked = self.order.method != "exec"
        self.streams = randomness.OwnStreams() if forked and self.order.seed is None else None
        told = self.channel if self.order.tells_phases else None
        self.enter = entrance(self.order.framework if forked else "", forked, told)
        ours.close()
        theirs.close()
        waits, self.gate = (kernel.move_above(end, self.seat.above) for end in os.pipe())
        os.dup2(waits, self.seat.gate, inheritable=False)
        os.close(waits)
        self.after_fork = identity.after_fork()
        self.has_handlers = replica.has_exit_handlers()

    def _make_all(self, outlets: Outlets) -> None:
        """Prepare some, fork some: what is written between two forks is copied page by page."""
        plans, parent = self.order.host.replicas, os.getpid()
        self._prepare_roles()
        for start in range(0, len(plans), _AT_ONCE):
            some = [Member.prepare(p, self.seat, outlets) for p in plans[start : start + _AT_ONCE]]
            roles = [self._role(member) for member, _ in some]
            _inside.install(roles[0].info, None, self.channel)
            for (member, theirs), role in zip(some, roles, strict=True):
                role.timeline.forked = member.forked = time.monotonic_ns()
                member.pid = os.fork()
                if member.pid == 0:
                    self._be_replica(role, member, theirs, parent)
                self.members.append(member)
            if start == 0:
                os.close(self.gate)  # of hundreds all alive, each further fork would cost more
            _inside.uninstall()
            for _, theirs in some:
                for descriptor in theirs:
                    os.close(descriptor)

    def _be_replica(self, role: Role, member: Member, theirs: tuple[int, ...], parent: int) -> None:
        """In the fresh child; never returns."""
        role.timeline.born = time.monotonic_ns()
        try:
            seat = self.seat
            os.dup2(theirs[0], seat.channel, inheritable=False)
            os.dup2(member.stacks, seat.stacks, inheritable=False)
            for number, descriptor in zip((2, 1), theirs[1:], strict=False):
                os.dup2(descriptor, number)
            if not role.info.descriptors:
                for descriptor in self.got.leases.values():
                    os.close(descriptor)
            state.change_environment(self.own[member.rank])
            replica.settle_in(seat, self.order, member.plan, parent, self.pipe[0])
            if self.order.method == "exec":
                replica.replace_image(seat)
            if self.has_handlers:
                replica.forget_exit_handlers()
            # A template's pools were loaded with one thread each, a launcher's with any number.
            if member.plan.threads and (self.order.method == "inherit" or member.plan.threads > 1):
                pools.set_threads(member.plan.threads)
            self.channel.local_rank = member.plan.local_rank
            replica.run(role, self._call_in_replica)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _call_in_replica(self) -> replica.Call:
        if self.call is not None:
            return self.call
        if self.order.tells_phases:
            self.channel.tell_phase("importing")
        return load(self.got.image, self.got.arguments)

    def _cannot_make(self, error: BaseException) -> None:
        for member in self.members:
            member.signal(signal.SIGKILL, group=True)
        family.end_descendants()
        count = len(self.order.host.replicas)
        limits = ", ".join(f"{k[7:]} {v[0]}" for k, v in self.order.state.limits.items()
                           if k in ("RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_AS"))  # fmt: skip
        text = f"replica {len(self.members)} of {count} could not be made: {error} ({limits})"
        self.wire.send(("cannot", text))
        raise SystemExit(1)
