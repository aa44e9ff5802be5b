"""What a runtime is to the planner: one object that answers the same few questions for any device.

A runtime file holds only tables and arithmetic; everything it may look at arrives as a ``Job``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from xmp._clusters._base import Cluster, Place
from xmp._types import ForkRules, HostFacts, PortNeed, Request

__all__ = ["Fit", "Job", "Place", "Runtime", "Share", "many", "matches", "version_of"]

T = TypeVar("T")


@dataclass(frozen=True)
class Fit:
    """How many replicas one host takes: the default, the numbers that work, and why."""

    default: int
    allowed: tuple[int, ...] | None
    """None: any number from 1."""
    reason: str
    advice: str = ""


@dataclass(frozen=True)
class Job:
    """A request on known hosts, with the number of replicas per host settled."""

    request: Request
    places: tuple[Place, ...]
    addresses: tuple[str, ...]
    """Of all hosts, in the order of their indices, whether their facts are known or not."""
    local: int
    """Replicas on each host."""
    coordinator: str = "127.0.0.1"
    """Where every replica reaches host 0; loopback on one host."""
    coordinator_port: int = 0
    """The port that the cluster or the user fixed for host 0; 0 when there is none."""
    leasable: bool = True
    """Whether ports leased on one host can be told to the others; else they are fixed numbers."""
    ports: Mapping[str, int] = field(default_factory=dict)
    memo: dict[str, Any] = field(default_factory=dict, compare=False)
    """What a runtime works out once for all replicas (a job may have a thousand)."""

    @property
    def hosts(self) -> int:
        """How many hosts take part."""
        return len(self.addresses)

    @property
    def world(self) -> int:
        """Replicas on all hosts together."""
        return self.hosts * self.local

    def once(self, key: str, make: Callable[[], T]) -> T:
        """What ``make`` returns, made at the first call with this ``key``."""
        if key not in self.memo:
            self.memo[key] = make()
        made: T = self.memo[key]
        return made

    def port(self, need: PortNeed) -> int:
        """The leased port of ``need``, or the number that a printed plan shows before a lease."""
        return self.ports.get(need.name) or need.port or need.documented


@dataclass(frozen=True)
class Share:
    """What a runtime gives one replica, before everybody's common variables are added."""

    set: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    settings: Mapping[str, str] = field(default_factory=dict)
    process: int | None = None
    """The process that holds the replica where it is not one of its own; None: its local rank."""


class Runtime:
    """Base of all runtimes: the defaults are those of a runtime without devices."""

    name: str = ""
    framework: str = ""
    """Import path of the module whose ``enter`` readies a replica."""
    family: str = ""
    """The package that speaks for this runtime when the launcher has it loaded."""
    package: str = ""
    """What must be installed to use it at all."""
    distribution: str = ""
    """What pip calls that, where it is not the package's name with hyphens."""
    automatic: bool = True
    """Whether it may be chosen without being named."""
    store: bool = False
    """Whether replicas meet at a torch store (``MASTER_ADDR``, ``MASTER_PORT``)."""
    default_backend: str = ""
    backends: tuple[str, ...] = ()
    """Process-group backends that work on its devices; empty: it has no process groups."""
    owned: tuple[str, ...] = ()
    """Names, or prefixes ending in ``*``, that carry a replica's identity: ours alone to set."""
    inputs: tuple[str, ...] = ()
    """Variables that it reads besides, and leaves as they are."""
    by_call: tuple[str, ...] = ()
    """Variables read at import whose settings its framework also makes by a call, in replicas."""
    takes_away: tuple[str, ...] = ()
    """Variables that its replicas must not see, though they say nothing of who they are."""
    needs_packages: tuple[str, ...] = ()
    """What a template may import because every replica will."""
    fork_rules: ForkRules = ForkRules()

    @property
    def reads(self) -> tuple[str, ...]:
        """Every variable by name that its plans depend on."""
        return tuple(name for name in (*self.owned, *self.inputs) if not name.endswith("*"))

    def configured(self, facts: HostFacts) -> str:
        """The inherited setting that names this runtime, or an empty string."""
        return ""

    def possible(self, facts: HostFacts) -> str:
        """Why this host can use it (hardware and installed package), or an empty string."""
        return ""

    def visible(self, facts: HostFacts) -> tuple[str, ...] | None:
        """What the host's mask allows, in order; None for a runtime without devices."""
        return None

    def on_tpu(self, facts: HostFacts) -> bool:
        """Whether it will use TPU chips on this host, whose hosts are those of the slice."""
        return False

    def cluster(self, facts: HostFacts) -> Cluster | None:
        """The other hosts, for a runtime with variables of its own that say so."""
        return None

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        """How many replicas each of ``hosts`` hosts takes; PlanError where it takes none."""
        raise NotImplementedError

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        """The ports to hold on the hosts of ``job.places``, apart from the torch store."""
        return ()

    def share(self, job: Job, place: Place, local: int) -> Share:
        """The part of the plan that belongs to one replica."""
        raise NotImplementedError

    def notes(self, job: Job) -> tuple[str, ...]:
        """What a reader of the plan should know."""
        return ()

    def chosen(self, job: Job, place: Place) -> tuple[str, ...]:
        """The visible devices of this launch: those named by ``devices=``, else the first ones."""
        visible = self.visible(place.facts) or ()
        if job.request.devices is None:
            return visible[: job.local]
        return tuple(visible[index] for index in job.request.devices)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether ``name`` is one of ``patterns`` (exact, or a prefix ending in ``*``)."""
    exact, prefixes = _compiled(patterns)
    return name in exact or name.startswith(prefixes)


@functools.lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return frozenset(patterns), prefixes


def many(count: int, what: str) -> str:
    """``"1 chip"``, ``"4 chips"``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def version_of(facts: HostFacts, package: str) -> tuple[int, ...]:
    """The installed release of ``package`` as numbers, ``()`` where it is not installed."""
    text = facts.frameworks.get(package)
    if not text:
        return ()
    numbers = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
