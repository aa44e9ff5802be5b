"""The interface between the planner and a runtime: one class with the same methods for any device.

A runtime file holds only tables and arithmetic; all that it depends on arrives as a ``Job``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from xmp._plan.clusters._base import Cluster, Place
from xmp._words.types import ForkRules, HostFacts, PortNeed, Request

__all__ = [
    "SPMD", "Fit", "Job", "Place", "Runtime", "Share", "is_spmd", "many", "matches", "version_of",
]  # fmt: skip

T = TypeVar("T")
SPMD = "XLA_USE_SPMD"


@dataclass(frozen=True)
class Fit:
    """The numbers of replicas that one host takes: the default, those that work, and why."""

    default: int
    allowed: tuple[int, ...] | None
    """None: any number from 1."""
    reason: str
    """The fact that determines the numbers: "8 visible GPUs"."""
    advice: str = ""
    """Advice to a user who wants another number."""


@dataclass(frozen=True)
class Job:
    """A request on known hosts, with the number of replicas per host decided."""

    request: Request
    places: tuple[Place, ...]
    """The hosts whose facts are known."""
    addresses: tuple[str, ...]
    """Addresses of all hosts in the order of their indices; empty where one is not known."""
    local: int
    """Replicas on each host."""
    coordinator: str = "127.0.0.1"
    """Where every replica reaches host 0; loopback on one host."""
    coordinator_port: int = 0
    """The port that the cluster or the user fixed for host 0; 0 when there is none."""
    leasable: bool = True
    """Whether all hosts know each other's leased ports; if not, ports are fixed numbers."""
    name: str = ""
    """The job's name at the launcher that placed the hosts; empty where it is not known."""
    open: bool = False
    """Whether this host's index is not known: its plan is that of host 0."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """The leased ports by the name of their need; empty before they are leased."""
    memo: dict[str, Any] = field(default_factory=dict, compare=False)
    """Values that a runtime computes once for all replicas (a job may have a thousand)."""

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return len(self.addresses)

    @property
    def world(self) -> int:
        """Replicas on all hosts together."""
        return self.hosts * self.local

    def once(self, key: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returned at the first call with this ``key``."""
        if key not in self.memo:
            self.memo[key] = make()
        made: T = self.memo[key]
        return made

    def port(self, need: PortNeed) -> int:
        """Return the leased port of ``need``, or before a lease the number for a printed plan."""
        return self.ports.get(need.name) or need.port or need.documented


@dataclass(frozen=True)
class Share:
    """A replica's part of the plan, besides the variables that replicas of all runtimes get."""

    set: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    settings: Mapping[str, str] = field(default_factory=dict)
    process: int | None = None
    """The index of the replica's process on its host; None: its own process, its local rank."""


class Runtime:
    """Base of all runtimes: the defaults are those of a runtime without devices."""

    name: str = ""
    framework: str = ""
    """The import path of the module whose ``enter`` prepares a replica."""
    family: str = ""
    """The package that selects this runtime when the launcher has imported it."""
    package: str = ""
    """The package that must be installed."""
    connected_by: tuple[str, str] = ("", "")
    """(package, call) with which a program connects processes that another launcher has started."""
    distribution: str = ""
    """The package's name for pip, where that is not its import name with hyphens."""
    automatic: bool = True
    """Whether xmp may choose this runtime where the user names none."""
    for_tests: bool = False
    """Whether it is only for test suites: errors suggest it only to a user who meant it."""
    store: bool = False
    """Whether its replicas meet at a torch store (``MASTER_ADDR``, ``MASTER_PORT``)."""
    default_backend: str = ""
    """The process-group backend that ``backend="auto"`` means."""
    backends: tuple[str, ...] = ()
    """Process-group backends that work on its devices; empty: it has no process groups."""
    owned: tuple[str, ...] = ()
    """Variables (or prefixes ending in ``*``) that identify a replica; only xmp sets them."""
    inputs: tuple[str, ...] = ()
    """Other variables that it reads; replicas inherit them unchanged."""
    by_call: tuple[str, ...] = ()
    """Variables read at import whose settings its framework also applies by a call, in replicas."""
    removes: tuple[str, ...] = ()
    """Other variables that are removed from its replicas, although they do not identify one."""
    needs_packages: tuple[str, ...] = ()
    """Packages that a template may import, since every replica will."""
    fork_rules: ForkRules = ForkRules()

    def configured(self, facts: HostFacts) -> str:
        """Return the inherited setting that selects this runtime, or an empty string."""
        return ""

    def possible(self, facts: HostFacts) -> str:
        """Return why this host can use it (hardware and installed package), or an empty string."""
        return ""

    def visible(self, facts: HostFacts) -> tuple[str, ...] | None:
        """Return the devices that the host's mask allows, in order; None: it has no devices."""
        return None

    def on_tpu(self, facts: HostFacts) -> bool:
        """Return whether it uses this host's TPU chips: the job's hosts are those of the slice."""
        return False

    def cluster(self, facts: HostFacts) -> Cluster | None:
        """Return the job's hosts where the runtime's own variables describe them, else None."""
        return None

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        """Return how many replicas each of ``hosts`` hosts takes; raise PlanError for none."""
        raise NotImplementedError

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        """Return the ports to hold on the hosts of ``job.places``, apart from the torch store's."""
        return ()

    def share(self, job: Job, place: Place, local: int) -> Share:
        """Return the part of the plan that belongs to the replica of local rank ``local``."""
        raise NotImplementedError

    def has_store(self, job: Job) -> bool:
        """Return whether the replicas of this job meet at a torch store."""
        return self.store

    def endpoints(self, job: Job, place: Place) -> str:
        """Return the "address:port" of every replica in rank order, joined by commas.

        The string is empty where replicas have none of their own.
        """
        return ""

    def from_files(self, facts: HostFacts) -> Mapping[str, str]:
        """Return the variables that its library can read from files, each with that of the path."""
        return {}

    def notes(self, job: Job) -> tuple[str, ...]:
        """Return notes for the reader of the plan."""
        return ()

    def chosen(self, job: Job, place: Place) -> tuple[str, ...]:
        """Return the devices of this launch: those named by ``devices=``, else the first ones."""
        visible = self.visible(place.facts) or ()
        if job.request.devices is None:
            return visible[: job.local]
        return tuple(visible[index] for index in job.request.devices)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether ``name`` is one of ``patterns`` (exact, or a prefix ending in ``*``)."""
    exact, prefixes = _compiled(patterns)
    return name in exact or name.startswith(prefixes)


@functools.lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return frozenset(patterns), prefixes


def many(count: int, what: str) -> str:
    """Return the number and the noun: ``"1 chip"``, ``"4 chips"``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def is_spmd(facts: HostFacts) -> bool:
    """Return whether torch_xla is in SPMD mode, read as its ``check_env_flag`` does (2.9)."""
    return facts.env.get(SPMD, "").upper() in ("ON", "1", "YES", "TRUE", "Y")


def version_of(facts: HostFacts, package: str) -> tuple[int, ...]:
    """Return the installed release of ``package`` as numbers, ``()`` where it is not installed."""
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
