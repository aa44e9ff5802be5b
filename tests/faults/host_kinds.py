"""Faults of a launch over two hosts: what, where, when, and what each host must say. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["KINDS", "START", "HostKind", "HostRound", "draw"]

START = 6.0
"""Seconds of ``start_timeout`` in rounds in which a host does not come."""
REPLICA, PROCESS, SILENCE = 1.0, 2.0, 15.0
"""Seconds from a fault to the error on every host; a grace is added to the first two."""
GRACE = 1.0
RUNNING = ("first", "allreduce", "end")
""""first": all wait in their function; "end": all replicas but one have returned."""
ALL = ("roll-call", *RUNNING)
""""roll-call": the host waits for the other, which has not started yet."""


@dataclass(frozen=True)
class HostKind:
    """One fault, and what is said of it."""

    name: str
    moments: tuple[str, ...]
    limit: float
    """Seconds within which all hosts that can must have their error."""
    words: str = ""
    """What a replica's error must hold; "" where the fault befalls no replica."""
    own: tuple[str, ...] = ()
    """The errors that the host may raise which it befalls; empty where it can raise none."""
    process: str = ""
    """The process that it befalls; "" where it befalls the machine or the cable."""


def _replica(name: str, words: str) -> HostKind:
    return HostKind(name, RUNNING, REPLICA + GRACE, words)


KINDS = (
    _replica("raise", "raised ValueError: planned"),
    _replica("exit", "ended with exit code 17"),
    _replica("SIGKILL", "was killed by SIGKILL"),
    _replica("abort", "was killed by SIGABRT"),
    HostKind(
        "supervisor-killed", RUNNING, PROCESS + GRACE,
        own=("StartError", "HostLost"), process="supervisor",
    ),
    HostKind("launcher-killed", ALL, PROCESS + GRACE, process="launcher"),
    HostKind(
        "carrier-killed", ALL, PROCESS + GRACE, own=("HostLost", "StartError"), process="carrier"
    ),
    HostKind("launcher-paused", ALL, 0, process="launcher"),
    HostKind("launcher-stopped", ("first",), REPLICA + GRACE, process="launcher"),
    HostKind("cut", ALL, SILENCE, own=("HostLost", "StartError")),
    HostKind("unplug", ALL, SILENCE, own=("HostLost", "StartError")),
    HostKind("lose-power", ALL, SILENCE),
)  # fmt: skip


@dataclass(frozen=True)
class HostRound:
    """One fault at one moment on one host, ready to be run."""

    seed: int
    number: int
    kind: str
    moment: str
    host: int
    """The host that it befalls."""
    victim: int
    """The rank that it befalls, or that is the last at the moment "end"."""
    step: int
    """In all-reduces: after so many of them."""

    @property
    def fault(self) -> HostKind:
        return next(kind for kind in KINDS if kind.name == self.kind)

    @property
    def of_a_replica(self) -> bool:
        """Whether all hosts must name the rank ``victim``."""
        return bool(self.fault.words) or self.kind == "launcher-stopped"

    @property
    def limit(self) -> float:
        """Seconds from the fault to every host's error."""
        return START + PROCESS + GRACE if self.moment == "roll-call" else self.fault.limit

    def __str__(self) -> str:
        whom = f"rank {self.victim}" if self.fault.words else f"host {self.host}"
        return f"{self.kind} of {whom}, {self.moment}"


def draw(seed: int, number: int) -> HostRound:
    """The round of this number; as many rounds as there are faults have each of them once."""
    lap, place = divmod(number, len(KINDS))
    kinds = list(KINDS)
    random.Random(f"hosts {seed} {lap}").shuffle(kinds)
    kind, chance = kinds[place], random.Random(f"hosts {seed} {number}")
    moment, host, victim = chance.choice(kind.moments), chance.randrange(2), chance.randrange(4)
    if kind.words or (kind.process == "supervisor" and moment == "end"):
        host = victim // 2  # where the last replica is, there is a supervisor
    if kind.name == "launcher-stopped":
        victim = 2 * (1 - host)
    return HostRound(seed, number, kind.name, moment, host, victim, chance.randrange(30))
