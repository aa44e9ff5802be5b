"""The rules of a driver for the hosts of one launch: whom to start, to end, to give up. Pure.

Host 0 comes first: the others start when it holds the ports at which they meet. When one host has
failed all end; agents that do not are killed, and so is one that is stopped (SIGSTOP) for as long
as the carrier waits for a silent host. All times are monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "GIVE_UP", "KILL", "OTHERS_WAIT", "PREEMPTED", "SILENCE", "START", "STOP", "UNSTARTED",
    "AskedToEnd", "HostAnswered", "HostDone", "HostEnded", "JobAction", "JobEvent", "JobRules",
    "KillAll", "Looked", "PortsFound", "Preempted",
]  # fmt: skip

SECOND = 1_000_000_000
SILENCE = 13 * SECOND
"""With the time between two looks 15 s, the carrier's own limit."""
OTHERS_WAIT = 20 * SECOND
"""Beside the grace, in which all hosts end after the first."""


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PortsFound:
    """Host 0 holds the ports."""

    port: int


@dataclass(frozen=True)
class AskedToEnd:
    """All hosts have been asked to end ``within`` that time."""

    at: int
    within: int


@dataclass(frozen=True)
class Looked:
    """A look at the agents: which of them are stopped."""

    at: int
    stopped: frozenset[int] = frozenset()


@dataclass(frozen=True)
class KillAll:
    """The launcher waits no longer: the next look kills all agents."""


@dataclass(frozen=True)
class HostEnded:
    """Nothing more comes from a host."""

    host: int
    failed: bool = False


@dataclass(frozen=True)
class Preempted:
    """The driver has got a SIGTERM, and all hosts have been asked whether replicas end by it."""


@dataclass(frozen=True)
class HostAnswered:
    """The answer of one host: its replicas have agreed to end, or get the signal."""

    host: int
    agreed: bool


@dataclass(frozen=True)
class HostDone:
    """No process is left on a host; ``complete``: all its replicas have returned before."""

    host: int
    complete: bool


JobEvent = (
    PortsFound | AskedToEnd | Looked | KillAll | HostEnded | Preempted | HostAnswered | HostDone
)


# --- actions --------------------------------------------------------------------------------------

START = "start"
"""Send a host its order, with the port at which it meets the others."""
UNSTARTED = "unstarted"
"""A host without an order has nothing to end, and would not answer: it is over."""
STOP = "stop"
"""Ask all hosts to end."""
KILL = "kill"
"""Kill the agent of a host that should have ended."""
GIVE_UP = "give up"
"""Kill the agent of a host that is stopped: it is lost."""
PREEMPTED = "preempted"
"""All hosts have answered: 1 if no replica needs the signal, or 0, which may become 1 later."""


@dataclass(frozen=True)
class JobAction:
    """One of these, for a host where it concerns one."""

    name: str
    host: int = -1
    value: int = 0


@dataclass
class _Host:
    started: bool = False
    over: bool = False
    complete: bool = False
    agreed: bool | None = None
    stopped: int | None = None
    """Since when its agent is stopped."""


class JobRules:
    """The state of one launch over hosts: feed it events, and a look at each ``deadline``."""

    def __init__(self, hosts: int) -> None:
        self._hosts = [_Host() for _ in range(hosts)]
        self.deadline: int | None = None
        """When agents that have not ended are killed; None before they are asked to end."""
        self._preempted = False

    def begin(self) -> list[JobAction]:
        """Start host 0, which finds the ports."""
        return self._start([0], 0)

    def feed(self, event: JobEvent) -> list[JobAction]:
        """Take one event; return what to do now, in order."""
        if isinstance(event, PortsFound):
            return self._start(range(1, len(self._hosts)), event.port)
        if isinstance(event, AskedToEnd):
            return self._end(event)
        if isinstance(event, Looked):
            return self._look(event)
        if isinstance(event, KillAll):
            self.deadline = 0
            return []
        if isinstance(event, HostEnded):
            self._hosts[event.host].over = True
            return [JobAction(STOP)] if event.failed else []
        if isinstance(event, Preempted):
            self._preempted = True
            return []
        if isinstance(event, HostAnswered):
            self._hosts[event.host].agreed = event.agreed
        else:
            self._hosts[event.host].complete = event.complete
        return self._count_answers()

    def _start(self, numbers: Iterable[int], port: int) -> list[JobAction]:
        started = [number for number in numbers if not self._hosts[number].over]
        for number in started:
            self._hosts[number].started = True
        return [JobAction(START, number, port) for number in started]

    def _end(self, event: AskedToEnd) -> list[JobAction]:
        if self.deadline is None:
            self.deadline = event.at + event.within + OTHERS_WAIT
        unstarted = [n for n, host in enumerate(self._hosts) if not host.started and not host.over]
        for number in unstarted:
            self._hosts[number].over = True
        return [JobAction(UNSTARTED, number) for number in unstarted]

    def _look(self, event: Looked) -> list[JobAction]:
        actions = []
        for number, host in enumerate(self._hosts):
            if number not in event.stopped:
                host.stopped = None
            elif host.stopped is None:
                host.stopped = event.at
            elif not host.over and event.at - host.stopped >= SILENCE:
                actions.append(JobAction(GIVE_UP, number))
        late = self.deadline is not None and event.at >= self.deadline
        living = (number for number, host in enumerate(self._hosts) if not host.over)
        return [*actions, *(JobAction(KILL, number) for number in living if late)]

    def _count_answers(self) -> list[JobAction]:
        """Answer the SIGTERM, which ends no host if replicas end by themselves or have ended."""
        asked = [host for host in self._hosts if not host.complete]
        if not self._preempted or any(h.agreed is None and not h.over for h in asked):
            return []
        agreed = all(host.agreed is not False for host in asked)
        self._preempted = not agreed  # those that have not may return nevertheless
        return [JobAction(PREEMPTED, value=int(agreed))]
