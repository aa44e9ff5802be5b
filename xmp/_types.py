"""The words that every floor shares: frozen values, no behaviour that looks at the machine.

A *request* says what the user asked for, *facts* what the host is, a *plan* what will be done.
All three are plain values: they can be printed, compared, stored and sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = [
    "Event",
    "ForkRules",
    "Framework",
    "HostFacts",
    "HostPlan",
    "JobPlan",
    "Limits",
    "Observer",
    "Output",
    "PortNeed",
    "ReplicaInfo",
    "ReplicaPlan",
    "Request",
]

Pairs = tuple[tuple[str, str], ...]
"""A mapping as pairs: unlike a dict it is frozen, unlike a MappingProxyType it pickles."""


@dataclass(frozen=True)
class Request:
    """What the caller of ``spawn`` or ``plan`` asked for, checked but not yet planned."""

    nprocs: int | None = None
    """Replicas on this host; None means one for each device."""
    runtime: str | None = None
    """A runtime by name; None means choose."""
    devices: tuple[int, ...] | None = None
    """Positions in what the host's mask allows, in the order of the local ranks."""
    backend: str | None = None
    """The torch process group's backend; None leaves the group to the function."""
    threads: int | None = None
    """Threads of each replica; None means usable cores divided by local replicas."""
    bind: bool | str | None = None
    """Pin replicas to cores: True or "cores"; "numa" for whole nodes."""
    env: tuple[Pairs, ...] | None = None
    """Extra variables per local rank, or one entry for all."""


@dataclass(frozen=True)
class Limits:
    """How long a launch may take, in nanoseconds; None means as long as it likes."""

    total: int | None = None
    """From the call to the end of the last replica."""
    start: int | None = None
    """From the call until every replica is in the function."""
    hang: int | None = None
    """Without progress of any replica."""
    first: int = 0
    """When the first of several attempts was called, from which ``total`` counts; 0: this one is
    the first. Monotonic."""


@dataclass(frozen=True)
class Observer:
    """Who wants to see how a launch goes."""

    events: Any = None
    """A function that takes an ``Event``, or the path of a file of JSON lines."""
    progress: bool | None = None
    """Whether the start is shown; None: on a terminal, if it takes long."""


@dataclass(frozen=True)
class Event:
    """One change of a launch's state, as ``spawn(events=…)`` gets it.

    A file of events has one JSON object a line, whose keys are these fields. ``name`` is, for the
    launch as a whole (``rank`` is None):

    "planned"    what will be started; the first event of every launch, and of every restart
    "started"    the supervisor has loaded the function and makes the replicas
    "stopping"   xmp sends the signal in ``words`` to the ranks in ``words``
    "paused"     the user has stopped it (Ctrl-Z); "resumed": it goes on
    "verdict"    what went wrong, in ``words``; ``rank`` is the one that caused it
    "finished"   nothing of it is left; ``words`` names the error, if there is one. The last event

    and for one replica:

    "forked"     its process exists
    "importing"  it imports and loads what it needs, where it was not forked with that
    "joining"    it enters its framework: devices, process group
    "running"    the function begins
    "returned"   the function is done: it returned, or ended by ``sys.exit(0)``
    "raised"     the function, or what comes before it, raised the exception in ``words``, or ended
                 by ``sys.exit``
    "exited"     its process ended as it had to
    "stopped"    its process ended by a signal that xmp had sent
    "died"       its process ended in any other way: ``signal`` or ``exit_code`` say how
    """

    name: str
    at: float
    """Seconds since the call; never smaller than that of the event before."""
    time: float
    """Seconds since 1970, by the host's clock at the call, and ``at`` from there on."""
    launch: str
    """Which launch of this host: ``<pid of the launcher>-<its how manieth>``."""
    rank: int | None = None
    pid: int | None = None
    """The replica's process; the supervisor's for "started", the launcher's for "planned"."""
    exit_code: int | None = None
    signal: str | None = None
    """``SIGKILL``, where one ended the process."""
    words: str = ""
    restart: int = 0
    """How often the replicas had been started anew by then."""
    version: int = 1


@dataclass(frozen=True)
class Output:
    """Where the replicas' standard output and error go, when not straight to the launcher's."""

    log_dir: str | None = None
    """An absolute path: one file per rank and stream."""
    prefix: str | None = None
    """Before every line, with ``{rank}``, ``{local_rank}`` and ``{host}`` filled in."""
    show: tuple[int, ...] | None = None
    """The ranks whose output the launcher's streams get; None for all."""

    def shows(self, plan: ReplicaPlan) -> bool:
        """Whether somebody in this process is to be seen."""
        return self.show is None or any(each.rank in self.show for each in (plan, *plan.mates))

    def prefix_of(self, plan: ReplicaPlan, host: str) -> str:
        """What stands before the lines of this process; replicas that share it are all named."""
        numbers: dict[str, Any] = {"rank": plan.rank, "local_rank": plan.local_rank}
        if plan.mates:
            together = (plan, *plan.mates)
            numbers = {n: ",".join(str(getattr(each, n)) for each in together) for n in numbers}
        return (self.prefix or "").format(host=host, **numbers)

    def log_file(self, plan: ReplicaPlan, stream: str) -> str:
        """The path of its file for "stdout" or "stderr"."""
        ranks = "-".join(str(each.rank) for each in (plan, *plan.mates))
        return f"{self.log_dir}/rank{ranks}.{stream}.log"


@dataclass(frozen=True)
class HostFacts:
    """What one host says of itself, read once by ``_probe`` without touching a device.

    ``None`` means unknown. The JSON form is version 1 of the design's section 8.
    """

    hostname: str = "localhost"
    address: str = "127.0.0.1"
    platform: str = "linux"
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    tpu: Mapping[str, Any] = field(default_factory=dict)
    """``generation`` ("v5e"), ``chips``, ``devices``; empty without a TPU."""
    gpus: Mapping[str, Any] = field(default_factory=dict)
    """``vendor`` ("nvidia", "amd", "intel"), ``count``; empty without a GPU."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = (0,)
    """The CPUs this process may run on (affinity)."""
    cpu_quota: float | None = None
    """CPUs' worth of time the cgroup grants, where it limits it."""
    numa: tuple[tuple[int, ...], ...] = ()
    """The CPUs of each NUMA node, where sysfs shows them."""
    memory_bytes: int | None = None
    frameworks: Mapping[str, str | None] = field(default_factory=dict)
    """Installed version by package name, None where it is not installed."""
    loaded: tuple[str, ...] = ()
    """The frameworks that are imported in this process."""
    initialised: tuple[str, ...] = ()
    """The device runtimes that are up in this process: "jax:tpu", "torch:cuda"."""
    env_at_start: Mapping[str, str] = field(default_factory=dict)
    """Variables that imports write and that have changed since this process was started: what they
    were then, empty where they were unset."""


@dataclass(frozen=True)
class PortNeed:
    """One port that a plan wants held from planning until its user has bound it.

    ``listen``: bind and listen now, hand the descriptor to local rank 0 (torch's store takes it).
    ``hold``: bind with SO_REUSEPORT and never listen; a gRPC service binds beside it.
    ``reuse``: the same with SO_REUSEADDR, for a service that sets only that (another user's program
    that sets it may bind there too).
    """

    name: str
    how: str
    address: str = "127.0.0.1"
    port: int = 0
    """0 means any free port; otherwise exactly this one, refused when it is taken."""
    documented: int = 0
    """The runtime's own default, shown in a printed plan before a port is leased."""
    host: int = 0
    """The index of the host that has to hold it."""


@dataclass(frozen=True)
class ForkRules:
    """What the engine must know of devices to say whether a process may still be forked."""

    device_files: tuple[str, ...] = ()
    """Glob patterns of device files that an initialised runtime holds open."""
    driver_probes: tuple[tuple[str, str, int], ...] = ()
    """(library name part, function, the answer that means "not initialised"): asked if mapped."""
    quiet: Pairs = ()
    """Variables set while the template and the supervisor load, taken away in the replicas."""


@dataclass(frozen=True)
class ReplicaPlan:
    """What one replica gets: its place, its variables, its share of the machine."""

    rank: int
    local_rank: int
    process: int
    set: Pairs = ()
    unset: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int | None = None
    cpus: tuple[int, ...] = ()
    settings: Pairs = ()
    """What the framework applies by a call after the fork, by name."""
    mates: tuple[ReplicaPlan, ...] = ()
    """The other replicas of its process; the engine puts them here, a plan lists all by itself."""


@dataclass(frozen=True)
class HostPlan:
    """The replicas of one host, in the order of their local ranks."""

    index: int
    address: str
    replicas: tuple[ReplicaPlan, ...]


@dataclass(frozen=True)
class JobPlan:
    """What will be done, on every host; made by pure functions from request and facts."""

    runtime: str
    why: str
    world_size: int
    hosts: tuple[HostPlan, ...]
    notes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """The runtimes that were possible too."""
    sources: Pairs = ()
    """Where the numbers came from, by what they count ("replicas", "hosts", "threads")."""
    framework: str = ""
    """Import path of the module whose ``enter`` readies a replica; empty for none."""
    preload: tuple[str, ...] = ()
    """Packages that a template may import straight away, without a trial."""
    not_preloaded: tuple[str, ...] = ()
    """Packages that a template must not even try to import."""
    needs: tuple[PortNeed, ...] = ()
    fork_rules: ForkRules = field(default_factory=ForkRules)
    import_variables: tuple[str, ...] = ()
    """Names, or prefixes ending in ``*``, of variables that an import of the frameworks reads."""
    first_use_variables: tuple[str, ...] = ()
    """The exceptions: they match ``import_variables`` and are nevertheless read at first use."""


@dataclass(frozen=True)
class ReplicaInfo:
    """Who a replica is, as its framework and ``xmp.replica()`` see it."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host_index: int = 0
    runtime: str = ""
    device: str = "cpu"
    restart_count: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    descriptors: Mapping[str, int] = field(default_factory=dict)
    """Leased sockets that this replica inherited, by the name of their ``PortNeed``."""


class Framework(Protocol):
    """What a framework's ``enter`` returns: the mesh as one replica sees it.

    Collectives are functional: they return and never mutate. Values are tensors, arrays, numbers
    or trees (dict, list, tuple) of them; leaves of other types come back unchanged.

    One that has ``failed(error) -> int`` besides is asked when the user's function has raised, and
    says with which code the replica ends. One that has ``beside(info) -> Framework`` can be several
    replicas of one process: it is asked in the thread of each.
    """

    def device(self) -> Any:
        """The framework's own device object of this replica."""

    def init_process_group(self, timeout: float | None = None) -> None:
        """Form the process group by env://; does nothing when it is there already."""

    def barrier(self) -> None:
        """Wait until every replica is here."""

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce ``value`` over all replicas; ``op`` is sum, mean, min, max or prod."""

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Give every replica the value of rank ``src``; any picklable object."""

    def all_gather(self, value: Any) -> Sequence[Any]:
        """The values of all replicas in rank order; any picklable object."""

    def leave(self) -> None:
        """Take the process group down; called once, after the user's function."""
