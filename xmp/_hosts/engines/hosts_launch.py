"""A launch over hosts, as the driver runs it: start the agents, take in their messages, clean up.

What an agent passes on goes into one ``Outcome`` for the replicas of all hosts; how it has failed
is decided when all have ended (``verdict``).
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xmp._os import log, signals
from xmp._processes.launcher.deadlines import soonest
from xmp._processes.launcher.job import Job
from xmp._processes.launcher.launch import Launch
from xmp._processes.launcher.launch_registry import reap_finished, running_launches
from xmp._processes.launcher.link import Link
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.hosts import HostOrder, HostOver, PortsHeld, StartHost
from xmp._processes.messages.launch import (
    Done,
    Interrupt,
    Kill,
    Preempt,
    PreemptAnswer,
    StackTexts,
    Stop,
    TakeStacks,
    WaitedLong,
)
from xmp._processes.messages.order import PackedCall
from xmp._processes.system import linux
from xmp._processes.terminal.console import signals_of_the_user
from xmp._rules import job_rules as rules
from xmp._words.errors import HostLost, ReplicaError, ReplicaTimeout, StartError, XmpError

from .clocks import as_here, as_there
from .gathered_logs import HostLogs
from .host import Host
from .missing import missing_in
from .output import HostsOutput
from .stacks import StacksOfHosts
from .verdict import may_mend, verdict_of

if TYPE_CHECKING:
    from xmp._words.types import JobPlan

    from .protocol import Agent, Group

__all__ = ["HostsLaunch"]

_LOOK_EVERY = 2.0
"""Seconds between two looks whether an agent is stopped."""


class HostsLaunch(Launch):
    """One launch over hosts, from the orders to the last report."""

    def __init__(
        self,
        job: Job,
        group: Group,
        orders: Sequence[HostOrder],
        packed: PackedCall,
        planned: Callable[[int], JobPlan],
        logs: HostLogs,
    ) -> None:
        """``planned`` gives the plan for the port at which host 0 meets the others."""
        super().__init__(job, lends=False)
        self.hosts: list[Host] = []
        self.agents: Sequence[Agent] = ()
        self.output = HostsOutput(len(orders), packed.cell)
        self._stacks = StacksOfHosts()
        self._group, self._orders, self._packed, self._planned = group, orders, packed, planned
        self._port = 0
        """Which host 0 has found, once it has."""
        self._logs = logs
        self._rules = rules.JobRules(len(orders))
        if job.plan.framework and not job.reports_phases:
            self._first_phase = "joining"

    # --- starting ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all hosts; returns when every replica has been made, or the launch has failed.

        Raises what kept the replicas from being made; leaves nothing behind then.
        """
        reap_finished()
        with signals.deferred():
            try:
                self.outcome.begin()
                self.events.begin(self.job.called, self.job.plan, self.job.settings.restart_count)
                self.links = self.agents = self._group.agents()
                self.hosts = [Host(agent) for agent in self.agents]
                self._act(self._rules.begin())
                self._wait_for_start()
            except BaseException as error:
                if self.hosts and not isinstance(error, XmpError):
                    self._end_in_order(error)  # replicas may be in the function already
                with signals.blocked():
                    self._abandon(error)
                raise
        self.progress.hide()
        if not self.finished:
            running_launches.add(self)
        elif not self.outcome.processes and not self._may_restart():
            self.raise_error()

    def _may_restart(self) -> bool:
        """Return whether an attempt without replicas is one that has failed, and no bad request."""
        error = self.error()
        return bool(self.job.settings.max_restarts) and error is not None and self.may_mend(error)

    def _start_host(self, index: int, port: int) -> None:
        """Send one host its order, with the port that host 0 has found (0 for host 0 itself)."""
        self._port = port
        image = [self._packed.image] if self._packed.image >= 0 else []
        host = self.hosts[index]
        with contextlib.suppress(Closed):  # what is read next says why
            order = as_there(self._orders[index], host.agent.clock)
            streams = self.output.streams(index)
            host.agent.start(StartHost(order, port), image, streams)

    def _wait_for_start(self) -> None:
        def started() -> bool:
            return len(self.outcome.processes) == len(self.job.host.replicas) or self.finished

        with signals_of_the_user(self.lender.by_signal, self.print_stacks):
            while not self._reader.until(started, soonest(self.progress.next(), self._next_look())):
                self.progress.glance(self._doing)
                self._look()

    def _doing(self) -> str:
        waited = [host.agent.name for host in self.hosts if not host.came]
        names = ", ".join(waited[:4]) + (" and others" if len(waited) > 4 else "")
        return f"waiting for {names} to come" if waited else "the hosts start their replicas"

    def _abandon(self, error: BaseException) -> None:
        if not self.finished:
            self._close()
            self._group.close()
            self.output.close()
            self.events.end(error)

    # --- messages ------------------------------------------------------------------------------

    def order(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a request to all hosts that run; first those end that have no order yet."""
        if self.hosts and not self.finished:
            if isinstance(message, (Interrupt, Stop, Kill)):
                within = int((self.grace + self.patience) * 1e9)
                self._act(self._rules.feed(rules.AskedToEnd(time.monotonic_ns(), within)))
            elif isinstance(message, Preempt):
                self._act(self._rules.feed(rules.Preempted()))
        super().order(message, descriptors)

    def _readable(self, timeout: float | None) -> bool:
        if self.links or self.finished:
            return super()._readable(timeout)
        return linux.ready(self.output.fileno(), select.POLLIN, timeout)

    def _read(self) -> bool:
        """Take in one message of each host that has one; False when all is taken in and written."""
        if not self.links:
            self.finish()
        return super()._read()

    def _taken(self, link: Link, message: Message, descriptors: list[int]) -> None:
        host = self.hosts[link.index]
        known = as_here(message, host.agent.clock, self.job.called)
        if not host.take(known):
            self._report(known, descriptors)
        self._follow(host, known)

    def _lost(self, link: Link) -> None:
        host = self.hosts[link.index]
        host.lost = host.given_up or link.how_it_ended()
        host.was_asked = self._rules.deadline is not None and not host.given_up
        self._host_over(host)

    def _host_over(self, host: Host) -> None:
        self._over(host.agent)
        self._act(self._rules.feed(rules.HostEnded(host.agent.index, host.has_failed)))

    def _none_left(self) -> None:
        self.output.over()

    def _follow(self, host: Host, message: Message) -> None:
        """Do what follows from a message of a host, once it is taken in."""
        index = host.agent.index
        event: rules.JobEvent | None = None
        if isinstance(message, PortsHeld):
            event = rules.PortsFound(message.port)
        elif isinstance(message, StackTexts):
            if words := self._stacks.came():
                self.events.add([("waiting", time.monotonic_ns(), None, None, words)])
        elif isinstance(message, WaitedLong):
            if self._stacks.ask_who_is_late(self.hosts, message.late):
                self.order(TakeStacks())
        elif isinstance(message, PreemptAnswer):
            event = rules.HostAnswered(index, message.agreed)
        elif isinstance(message, Done):
            event = rules.HostDone(index, self._complete(host))
        elif isinstance(message, HostOver):
            self._host_over(host)
        if event is not None:
            self._act(self._rules.feed(event))

    def _act(self, actions: Sequence[rules.JobAction]) -> None:
        for name, index, value in ((each.name, each.host, each.value) for each in actions):
            host = self.hosts[index]
            if name == rules.START:
                self._start_host(index, value)
            elif name == rules.UNSTARTED:
                host.over = HostOver("", "")
                self._over(host.agent)
            elif name == rules.STOP:
                self.order(Stop())
            elif name == rules.PREEMPTED:
                self.sigterm.answered(bool(value))
            else:
                self._kill_agent(host, name == rules.GIVE_UP)

    def _kill_agent(self, host: Host, stopped: bool) -> None:
        if stopped:
            seconds = rules.SILENCE / 1e9
            host.given_up = f"was stopped, and has not gone on for {seconds:g} s: killed"
        else:
            log.warning("the agent of %s does not answer: killed", host.agent.name)
        host.agent.kill()

    def _complete(self, host: Host) -> bool:
        own = [rank for rank in self.outcome.processes if self.host_of(rank) is host]
        return host.done is not None and self.outcome.complete(own)

    # --- waiting -------------------------------------------------------------------------------

    def _next_look(self) -> float | None:
        ends = self._rules.deadline
        left = None if ends is None else (ends - time.monotonic_ns()) / 1e9
        return soonest(left, self._stacks.left(), _LOOK_EVERY)

    def _look(self) -> None:
        self._stacks.glance()
        self._look_at_agents()

    def _look_at_agents(self) -> None:
        stopped = frozenset(link.index for link in self.links if link.is_stopped())
        self._act(self._rules.feed(rules.Looked(time.monotonic_ns(), stopped)))

    def _kill(self) -> None:
        self._rules.feed(rules.KillAll())
        self._look_at_agents()
        self.output.give_up()

    # --- ending --------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        self._settle()
        for agent in self.agents:
            agent.rest()
        self.output.close()
        self._logs.gather([host.agent.index for host in self.hosts if host.came])
        self._group.release(any(host.lost for host in self.hosts))
        self.events.end(self.error())

    def _settle(self) -> None:
        outcome = self.outcome
        verdict = verdict_of(self.hosts, outcome.broken, self.asked_to_end, outcome.ended_by)
        outcome.leftovers, outcome.broken = verdict.leftovers, verdict.broken
        outcome.elsewhere = verdict.elsewhere
        if verdict.done is not None:
            outcome.host = verdict.place
            outcome.done(verdict.done)
        if verdict.memory is not None:
            outcome.memory = verdict.memory

    def _forget(self) -> str:
        self._group.drop()
        self.output.drop()
        return "only the process which launched it can join it"

    # --- questions -----------------------------------------------------------------------------

    def plan(self) -> JobPlan:
        """Make the plan with the ports that host 0 has found, when a program asks for it."""
        return self._planned(self._port) if self._port else self.job.plan

    def error(self) -> BaseException | None:
        """Return what the launch has failed with."""
        try:
            self.raise_error()
        except BaseException as error:
            return error
        return None

    def raise_error(self) -> None:
        """Raise the error that the launch has ended with, if there is one."""
        try:
            self.outcome.raise_error()
        except XmpError as error:
            self._explain(error)
            error._add(self._logs.where(error))
            raise

    def _explain(self, error: XmpError) -> None:
        """Add what only the driver knows: a host's name, and how a module gets there."""
        if isinstance(error, ReplicaTimeout) and error.rank >= 0:
            error.host = self.host_of(error.rank).agent.name
        of_host = isinstance(error, (StartError, ReplicaError))
        if of_host and (missing := missing_in(str(error))):
            error._add(self._group.advice(missing, self.job.settings.program))

    def may_mend(self, error: BaseException) -> bool:
        """Return whether another attempt may succeed, here or with a host for one lost."""
        of_hosts = self.outcome.elsewhere is None or isinstance(error, HostLost)
        return may_mend(error, self.hosts, self.outcome) if of_hosts else super().may_mend(error)

    def host_of(self, rank: int) -> Host:
        """Return the host that runs a replica."""
        return self.hosts[rank // len(self.job.plan.hosts[0].replicas)]

    def live_stacks(self) -> dict[int, str]:
        """Return the current stacks of all live replicas, by rank."""
        self._stacks.ask(self.hosts)
        self.order(TakeStacks())
        self.take_in(self._stacks.have_come, self._stacks.seconds)
        return self._stacks.taken()

    def print_stacks(self) -> None:
        """Ask for the stacks of all live replicas, to print them when all have arrived."""
        self._stacks.ask(self.hosts, prints=True)
        self.order(TakeStacks())
