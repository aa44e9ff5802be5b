"""The data types that all of xmp shares: frozen values that never look at the machine.

A *request* says what the user asked for, *facts* what the host is, a *plan* what xmp will do.
All three are plain values: they can be printed, compared, stored and pickled. The file is long
because it is the reference of every field, and all other modules import from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from .host_words import HostMeeting

__all__ = [
    "Bind", "ForkRules", "HostFacts", "HostPlan", "HostsByHand", "JobPlan", "Limits", "Observer",
    "Op", "Output", "PortNeed", "ReplicaPlan", "Request", "RuntimeName", "Settings", "StartMethod",
    "WorldByHand",
]  # fmt: skip

Pairs = tuple[tuple[str, str], ...]
"""A mapping as pairs: unlike a dict it is frozen, unlike a MappingProxyType it can be pickled."""

# The allowed words of options, for type checkers and editors.
StartMethod = Literal["forkserver", "spawn", "fork"]
Bind = bool | Literal["cores", "numa"]
Op = Literal["sum", "mean", "min", "max", "prod"]
RuntimeName = (
    Literal[
        "cpu", "cuda", "jax", "neuron", "paddle", "pjrt", "rocm", "torch_tpu", "xpu", "xrt"
    ]
    | str
)  # fmt: skip
"""Editors offer xmp's own names; other packages may add more."""


@dataclass(frozen=True)
class WorldByHand:
    """The position of this host's replicas in a world of several hosts, as given by the user."""

    rank_start: int
    """The global rank of the first replica of this host."""
    world_size: int
    """The replicas of all hosts together."""
    master_ip: str = ""
    """The address of host 0; empty where this host is the only one."""
    port: int = 0
    """The port of host 0 at which the replicas meet; 0: the runtime's documented one."""


@dataclass(frozen=True)
class HostsByHand:
    """All hosts of a job and the index of this one, as given by the user."""

    index: int
    """The index of this host in ``addresses``; -1: from a scheduler or the TPU, or by arrival."""
    addresses: tuple[str, ...]
    """The address or name of every host, empty where unknown; the hosts meet at the first."""
    port: int = 0
    """The port of host 0 at which the replicas meet; 0: the runtime's documented one."""
    said: str = ""
    """The options that gave these hosts, for errors and the plan; empty: Paddle's."""
    job: str = ""
    """The user's name for the job, the same on all hosts."""


@dataclass(frozen=True)
class Request:
    """What the caller of ``spawn`` or ``plan`` asked for, checked but not yet planned."""

    nprocs: int | None = None
    """Replicas on this host; None means one per device."""
    runtime: str | None = None
    """The name of a runtime; None means that xmp chooses."""
    devices: tuple[int, ...] | None = None
    """Positions among the devices that the host's mask allows, in the order of the local ranks."""
    backend: str | None = None
    """The torch process group's backend; None: the function forms its own group, or none."""
    grouped: bool = False
    """Without ``backend``: the group is formed nevertheless, wherever the runtime has one."""
    threads: int | None = None
    """Threads of each replica; None means usable cores divided by the replicas of the host."""
    bind: bool | str | None = None
    """Whether replicas are pinned: True or "cores" to cores, "numa" to whole NUMA nodes."""
    env: tuple[Pairs, ...] | None = None
    """Extra variables per local rank, or one entry for all."""
    imports: tuple[str, ...] = ()
    """Modules that the program will import: their packages count as loaded."""
    uses: tuple[str, ...] = ()
    """Frameworks that the program's code imports by itself: they decide where none is loaded."""
    late: bool = False
    """The program first changes a variable that their import reads: import none before it does."""
    store_port: int = 0
    """MASTER_PORT of a job of one host, or the first of Paddle's ports; 0: free ones."""
    world: WorldByHand | HostsByHand | None = None
    """The world that this host is part of; None: as a scheduler's variables say."""
    notes: tuple[str, ...] = ()
    """Decisions that the caller made for the user; the plan shows them."""


@dataclass(frozen=True)
class Limits:
    """How long a launch may take, in nanoseconds; None means no limit."""

    total: int | None = None
    """From the call to the end of the last replica."""
    start: int | None = None
    """From the call until every replica is in the function."""
    hang: int | None = None
    """How long no replica may make progress."""
    first: int = 0
    """When the first of several attempts was called, in monotonic nanoseconds; ``total`` counts
    from there. 0: this attempt is the first."""


@dataclass(frozen=True)
class Observer:
    """Where the events and the progress of a launch are reported."""

    events: Any = None
    """A function that takes an ``Event``, or the path of a file of JSON lines."""
    progress: bool | None = None
    """Whether the start is shown; None: on a terminal, when it takes longer than 2 s."""


@dataclass(frozen=True)
class Output:
    """Where the replicas' standard output and error go, if not straight to the launcher's."""

    log_dir: str | None = None
    """The folder of the log files, as an absolute path: one file per rank and stream."""
    prefix: str | None = None
    """Text before every line, with ``{rank}``, ``{local_rank}`` and ``{host}`` filled in."""
    show: tuple[int, ...] | None = None
    """The ranks whose output is shown on the launcher's streams; None for all."""
    by_host: bool = False
    """Whether lines get their host and rank: over several hosts of an engine, without a prefix."""
    host: str = ""
    """The name of the host in prefixes; empty: the launch's name for it."""
    gather: bool = False
    """Whether the log files of all hosts are copied to ``log_dir`` on the driver's machine."""
    streams: tuple[tuple[int, int, int], ...] = ()
    """(local rank, streams with a file, streams that are shown): 1 is output, 2 error, 3 both.
    Local rank -1 stands for all others."""

    def shows(self, plan: ReplicaPlan) -> bool:
        """Return whether the output of this process, or of any replica that shares it, is shown."""
        return self.show is None or any(
            each.rank in self.show for each in (plan, *plan.thread_replicas)
        )

    def prefix_of(self, plan: ReplicaPlan, host: str) -> str:
        """Return the prefix of this process's lines, with all replicas that share the process."""
        numbers: dict[str, Any] = {"rank": plan.rank, "local_rank": plan.local_rank}
        if plan.thread_replicas:
            together = (plan, *plan.thread_replicas)
            numbers = {n: ",".join(str(getattr(each, n)) for each in together) for n in numbers}
        return (self.prefix or "").format(host=host, **numbers)

    def log_file(self, plan: ReplicaPlan, stream: str) -> str:
        """Return the path of the process's log file for ``stream``, "stdout" or "stderr"."""
        return f"{self._log_path(plan)}.{stream}.log"

    def black_box(self, plan: ReplicaPlan) -> str:
        """Return the path of the framework's record of the process's last collectives."""
        return f"{self._log_path(plan)}.collectives.json"

    def _log_path(self, plan: ReplicaPlan) -> str:
        ranks = "-".join(str(each.rank) for each in (plan, *plan.thread_replicas))
        return f"{self.log_dir}/rank{ranks}"


@dataclass(frozen=True)
class Settings:
    """How xmp starts, watches and ends the replicas of one attempt: plain data.

    It travels unchanged from the call to the supervisor, and to the agents of other hosts.
    """

    start_method: str = "forkserver"
    """"forkserver", "spawn" or "fork"."""
    grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL."""
    daemon: bool = False
    """End the replicas with the process that has started them, instead of waiting for them."""
    seed: int | None = None
    """For ``random``, numpy and torch in every replica; None: each keeps its own."""
    limits: Limits | None = None
    """None, and not one without limits, where the user gave none: replicas read it."""
    max_restarts: int = 0
    """How many further attempts may follow."""
    restart_count: int = 0
    """How many attempts there were before this one."""
    output: Output | None = None
    """None where standard output goes to the launcher's as it is."""
    program: bool = False
    """A replica is a whole program: it has no result, and a single one reads the launcher's
    standard input."""
    wants_results: bool = True
    """What the function returns is sent to the launcher."""
    host_name: str = ""
    """What the launch calls this host, for prefixes; empty: as the kernel says."""
    stays: bool = False
    """The replicas of a gang wait for further calls when the first one has returned."""

    @property
    def hang(self) -> int:
        """Nanoseconds without progress after which the launch hangs; 0 without ``hang_timeout``."""
        return self.limits.hang or 0 if self.limits is not None else 0


@dataclass(frozen=True)
class HostFacts:
    """The facts of one host that a plan depends on, found without touching a device.

    ``None`` means unknown. `xmp facts --json` writes these fields as JSON, with the same names.
    """

    hostname: str = "localhost"
    address: str = "127.0.0.1"
    """The IP address at which other hosts reach this one."""
    interface: str = ""
    """The network interface that leads to host 0 ("eth0"); known in a launch over several hosts."""
    platform: str = "linux"
    """As ``sys.platform``."""
    python: str = ""
    """The version of the interpreter ("3.11.7")."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The environment variables of this process."""
    tpu: Mapping[str, Any] = field(default_factory=dict)
    """``generation`` ("v5e"), ``chips`` and ``devices`` (counts), ``nodes`` (the kind of device
    files: "vfio" or "accel"), ``unknown`` (the PCI id of a chip that xmp does not know); empty
    without a TPU."""
    gpus: Mapping[str, Any] = field(default_factory=dict)
    """``vendor`` ("nvidia", "amd", "intel"), ``count``; empty without a GPU."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Attributes of the cloud's metadata server, on TPU hosts."""
    host_files: Mapping[str, str] = field(default_factory=dict)
    """The host names in a scheduler's host file, by the variable that names the file:
    ``{"PBS_NODEFILE": "a b"}``."""
    cpus: tuple[int, ...] = (0,)
    """The numbers of the CPUs that this process may run on (its affinity)."""
    cpu_quota: float | None = None
    """The CPU time that the cgroup grants, in CPUs (1.5 is one and a half); None: no limit."""
    numa: tuple[tuple[int, ...], ...] = ()
    """The CPUs of each NUMA node, where sysfs shows them."""
    memory_bytes: int | None = None
    """The memory of the host."""
    frameworks: Mapping[str, str | None] = field(default_factory=dict)
    """The installed version of each package that xmp knows; None where it is not installed."""
    loaded: tuple[str, ...] = ()
    """The packages that this process has imported."""
    initialised: tuple[str, ...] = ()
    """The device runtimes that this process has initialised: "jax:tpu", "torch:cuda"."""
    env_at_start: Mapping[str, str] = field(default_factory=dict)
    """The values at this process's start (empty where unset) of those variables that a framework's
    import writes and that have changed since."""


@dataclass(frozen=True)
class PortNeed:
    """A port that a plan needs: xmp holds it until the program that will use it has bound it.

    ``how`` is one of:

    "listen"  bind and listen now; local rank 0 inherits the descriptor (torch's store takes it)
    "hold"    bind with SO_REUSEPORT and never listen; a gRPC service binds the same port beside it
    "reuse"   like "hold" but with SO_REUSEADDR, for a service that sets only that option. Any
              program that sets it can bind the port as well
    "reserve" like "hold" but with both options, and kept from one launch to the next: any of the
              other kinds can bind beside it
    """

    name: str
    """Identifies the port within the plan: "store", "process.<host>.<local rank>"."""
    how: str
    address: str = "127.0.0.1"
    port: int = 0
    """0 means any free port; any other number means exactly that port, or PortError."""
    documented: int = 0
    """The runtime's own default, which a plan shows until the port is leased."""
    host: int = 0
    """The index of the host that holds it."""
    purpose: str = ""
    """What meets there, for errors; empty: the name says it."""
    moved_by: str = ""
    """The setting that gives a fixed port another number on all hosts; empty where only this host
    has the port."""


@dataclass(frozen=True)
class ForkRules:
    """How the engine, which knows no devices, decides whether a process may still fork."""

    device_files: tuple[str, ...] = ()
    """Glob patterns of device files that an initialised runtime holds open."""
    driver_probes: tuple[tuple[str, str, int], ...] = ()
    """(part of a library's name, function, its result while the driver is not initialised). The
    function is called if the library is loaded."""
    quiet: Pairs = ()
    """Variables set while the template and the supervisor import, and removed in the replicas."""


@dataclass(frozen=True)
class ReplicaPlan:
    """What one replica is given: its rank, its variables, its device, its share of the host."""

    rank: int
    """Its global rank."""
    local_rank: int
    """Its rank on its host."""
    process: int
    """The index of its process on its host: its local rank, unless replicas share a process."""
    set: Pairs = ()
    """The environment variables that xmp sets."""
    unset: tuple[str, ...] = ()
    """The inherited environment variables that xmp removes."""
    device: str = "cpu"
    """Its device ("cuda:1", "tpu:0", "cpu"); also the variable XMP_DEVICE."""
    threads: int | None = None
    """The threads of each native pool (OMP_NUM_THREADS)."""
    cpus: tuple[int, ...] = ()
    """The CPUs to which it is pinned; empty: not pinned."""
    settings: Pairs = ()
    """Settings that its framework applies by a call after the fork, by name."""
    thread_replicas: tuple[ReplicaPlan, ...] = ()
    """The other replicas of its process. The engine fills this in; ``HostPlan`` leaves it empty."""


@dataclass(frozen=True)
class HostPlan:
    """The replicas of one host."""

    index: int
    """The host's index among all hosts of the job, from 0."""
    address: str
    replicas: tuple[ReplicaPlan, ...]
    """In the order of their local ranks."""
    files: Pairs = ()
    """Texts too long for a variable, as (variable, text). xmp writes each into a file of the launch
    and sets the variable to its path."""


@dataclass(frozen=True)
class JobPlan:
    """What a launch will do: a pure function of request and facts.

    ``str(plan)`` is the text that `xmp plan` prints.
    """

    as_text: ClassVar[Callable[[JobPlan], str]] = repr
    """The function that prints a plan; ``_plan.plan_text``, imported by all that plan, sets it."""
    runtime: str
    """The name of the runtime ("cuda")."""
    why: str
    """Why xmp chose that runtime."""
    world_size: int
    """The replicas of all hosts together."""
    hosts: tuple[HostPlan, ...]
    """The hosts whose facts were given; usually this host alone."""
    notes: tuple[str, ...] = ()
    """Remarks for the user: inherited variables that are dropped, devices that stay idle."""
    others: tuple[str, ...] = ()
    """The other runtimes that are possible on this host."""
    choice: str = ""
    """A line for errors: which of several runtimes xmp chose, and why; empty if it chose none."""
    sources: Pairs = ()
    """Where the numbers of "replicas", "hosts" and "threads" come from, in words."""
    framework: str = ""
    """The import path of the module whose ``enter`` prepares a replica; empty for none."""
    preload: tuple[str, ...] = ()
    """Packages that a template may import without a trial."""
    not_preloaded: tuple[str, ...] = ()
    """Packages that a template must not import, not even as a trial."""
    needs: tuple[PortNeed, ...] = ()
    """The ports to hold before the replicas start."""
    meeting: HostMeeting | None = None
    """Where the launchers of several hosts meet; None where this host is the only one."""
    fork_rules: ForkRules = field(default_factory=ForkRules)
    import_variables: tuple[str, ...] = ()
    """The variables that the frameworks read when they are imported: names, or prefixes that end in
    ``*``. A template serves only launches in which these are equal."""
    first_use_variables: tuple[str, ...] = ()
    """The exceptions to ``import_variables``: names that match, but are read at first use."""
    env: Pairs = ()
    """The variables that ``env=`` sets to one value in all replicas."""
    env_by_rank: tuple[str, ...] = ()
    """The names of the variables to which ``env=`` gives each replica a value of its own."""

    def __str__(self) -> str:
        return type(self).as_text(self)

    def __repr__(self) -> str:
        return f"<JobPlan runtime={self.runtime!r} world_size={self.world_size}>"
