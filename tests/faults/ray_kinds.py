"""Faults of a launch over two hosts of Ray: what, when, and what the driver must say. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["KINDS", "RayKind", "RayRound", "draw"]

REPLICA, PROCESS, RAYLET, SILENCE = 1.0, 2.0, 5.0, 15.0
"""Seconds from a fault to the driver's error, or until nothing is left; the grace is added to the
first three."""
RUNNING = ("first", "allreduce", "end")
""""first": all wait in their function; "end": all replicas but one have returned."""
ANY = ("any", *RUNNING)
""""any": so many seconds after the call, whatever happens then."""
ALL = ("rest", *ANY)
""""rest": between two launches of one driver, which keeps its agents."""


@dataclass(frozen=True)
class RayKind:
    """One fault, and what is said of it."""

    name: str
    moments: tuple[str, ...]
    limit: float = 0.0
    """Seconds, without the grace."""
    words: str = ""
    """What a replica's error must hold; "" where the fault befalls no replica."""
    victim: str = ""
    """"host": something on a host; "driver"; "" where nothing happens."""
    ends: tuple[str, ...] = ()
    """How the launch may end: classes of errors, or "gone" where the driver ends by the signal."""
    has_grace: bool = True
    seldom: bool = False
    """In one lap of two: it takes long."""


def _replica(name: str, words: str) -> RayKind:
    error = "ReplicaRaised" if name == "raise" else "ReplicaDied"
    return RayKind(name, RUNNING, REPLICA, words, ends=(error,))


LOST = ("HostLost", "StartError")
KINDS = (
    RayKind("none", ("allreduce",)),
    _replica("raise", "raised ValueError: planned"),
    _replica("exit", "ended with exit code 17"),
    _replica("SIGKILL", "was killed by SIGKILL"),
    _replica("segfault", "was killed by SIGSEGV"),
    RayKind("agent-killed", ALL, PROCESS, victim="host", ends=LOST),
    RayKind("actor-killed", ALL, PROCESS, victim="host", ends=LOST),
    RayKind("supervisor-killed", ANY, PROCESS, victim="host", ends=LOST),
    # Before a host has its agent, the launch waits for another host to come.
    RayKind("raylet-killed", ("rest", *RUNNING), RAYLET, victim="host", ends=LOST),
    RayKind("cut", RUNNING, SILENCE, victim="host", ends=LOST, has_grace=False, seldom=True),
    RayKind("ctrl-c", ANY, PROCESS, victim="driver", ends=("KeyboardInterrupt",)),
    RayKind("sigterm", ANY, PROCESS, victim="driver", ends=("gone",)),
    RayKind("driver-killed", ALL, PROCESS, victim="driver", ends=("gone",), has_grace=False),
)  # fmt: skip


@dataclass(frozen=True)
class RayRound:
    """One fault at one moment, with the options of the launch that it befalls."""

    seed: int
    number: int
    kind: str
    moment: str
    after: float
    """At the moment "any": seconds after the call."""
    driver: int
    """The host on which the driver is."""
    host: int
    """The node that it befalls; at the moment "end" a supervisor that is killed is the last one."""
    victim: int
    """The rank that it befalls, or that is the last at the moment "end"."""
    step: int
    """In all-reduces: after so many of them."""
    method: str
    grace: float
    backend: str | None
    kept: bool
    """Whether the agents have made a launch before."""

    @property
    def fault(self) -> RayKind:
        return next(kind for kind in KINDS if kind.name == self.kind)

    @property
    def limit(self) -> float:
        """Seconds from the fault to the driver's error, or to the end of all that runs."""
        return self.fault.limit + (self.grace if self.fault.has_grace else 0.0)

    @property
    def gone(self) -> bool:
        """Whether the driver ends before it can say anything."""
        return "gone" in self.fault.ends

    @property
    def ends_driver(self) -> bool:
        """Whether it ends with this round, or with its host, which is made new."""
        own = self.kind == "raylet-killed" and self.driver == self.host
        return self.fault.victim == "driver" or own

    def __str__(self) -> str:
        whom = f" of host {self.host}" if self.fault.victim == "host" else ""
        whom = f" of rank {self.victim}" if self.fault.words else whom
        when = f"{self.after:.2f} s after the call" if self.moment == "any" else self.moment
        kept = "kept agents" if self.kept else "new agents"
        return (
            f"{self.kind}{whom}, {when}, driver on host {self.driver}, {self.method}, "
            f"backend {self.backend}, grace {self.grace}, {kept}"
        )


def _lap(seed: int, lap: int) -> list[RayKind]:
    """Each fault once, but for one that is seldom: in every second lap."""
    kinds = [kind for kind in KINDS if not (kind.seldom and lap % 2)]
    random.Random(f"ray {seed} {lap}").shuffle(kinds)
    return kinds


def _kind(seed: int, number: int) -> RayKind:
    lap, place = 0, number
    while place >= len(kinds := _lap(seed, lap)):
        lap, place = lap + 1, place - len(kinds)
    return kinds[place]


def draw(seed: int, number: int) -> RayRound:
    """The round of this number, the same whenever it is drawn."""
    kind, chance = _kind(seed, number), random.Random(f"ray {seed} {number}")
    moment, driver = chance.choice(kind.moments), chance.randrange(2)
    host, victim = chance.randrange(2), chance.randrange(4)
    if kind.name in ("raylet-killed", "cut"):
        host = 1  # without its head there is no cluster
    if kind.name == "cut":
        driver = 0  # what is cut off from the driver is host 1
    after = 0.6 * chance.random() if (kept := chance.random() < 0.5) else 4 * chance.random()
    backend = chance.choice((None, "gloo"))
    return RayRound(
        seed, number, kind.name, moment, after, driver, host, victim, chance.randrange(30),
        chance.choice(("forkserver", "forkserver", "spawn")), chance.choice((0.5, 1.0, 2.0)),
        backend, kept or moment == "rest",
    )  # fmt: skip
