"""The faults of the suite: what can go wrong, when, and what must be said of it. Pure.

A round is drawn from a seed and a number: a fault, its victim, the moment, the start method, and
what the others do meanwhile.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

__all__ = ["HANG", "KINDS", "METHODS", "Kind", "Round", "draw"]

METHODS = ("forkserver", "spawn", "fork")
MEETING = ("allreduce", "barrier")
"""In the middle of collectives, in which the others wait for the victim."""
RUNNING = ("first", *MEETING, "late")
""""first" line of fn; "late": after all others have ended well."""
ALL = ("import", *RUNNING, "exit")
""""import" of the user's module; "exit": in an exit handler, after fn has returned."""
HANG = 1.0
"""Seconds of ``hang_timeout`` where the fault is that nothing happens."""
TOTAL = 12.0
"""Seconds of ``start_timeout``, and of ``timeout`` for a supervisor that is stopped."""


@dataclass(frozen=True)
class Kind:
    """One fault and the verdict on it."""

    name: str
    moments: tuple[str, ...]
    verdict: str
    """The error's class, "" where the launch must succeed, "gone" where the launcher is killed."""
    exit_code: int | None = None
    signal: str | None = None
    words: str = ""
    """What the error's text must hold."""
    limit: str = ""
    """Without this time limit it would be no fault."""
    outside: str = ""
    """The process that it befalls, where that is no replica."""
    methods: tuple[str, ...] = METHODS
    root: bool = False


def _signal(name: str, moments: tuple[str, ...] = ALL) -> Kind:
    return Kind(name.lower(), moments, "ReplicaDied", signal=name)


def _hang(name: str) -> Kind:
    return Kind(name, ALL, "ReplicaTimeout", limit="hang_timeout")


def _out_of_memory(name: str) -> Kind:
    words = "out of memory"
    return Kind(name, RUNNING, "ReplicaDied", signal="SIGKILL", words=words, root=True)


def _fine(name: str, moments: tuple[str, ...] = RUNNING, **more: object) -> Kind:
    return Kind(name, moments, "", **more)  # type: ignore[arg-type]


def _raises(name: str, words: str, moments: tuple[str, ...] = RUNNING, **more: object) -> Kind:
    return Kind(name, moments, "ReplicaRaised", words=words, **more)  # type: ignore[arg-type]


# Python says so when an exit handler raises, and goes on: that is no fault.
_AWAKE = (*RUNNING, "exit")
KINDS = (
    _raises("raise", "ValueError: planned", ("import", *RUNNING)),
    _raises("raise-local", "Unsendable: planned"),
    Kind("sys-exit", ("import", *RUNNING), "ReplicaDied", exit_code=3),
    Kind("sys-exit-text", ("import", *RUNNING), "ReplicaDied", exit_code=1, words="planned words"),
    Kind("os-exit", ALL, "ReplicaDied", exit_code=17, words="legacy"),
    _fine("os-exit-0", ("first", "late")),
    _signal("SIGSEGV"),
    _signal("SIGABRT"),
    _signal("SIGBUS"),
    _signal("SIGFPE"),
    _signal("SIGILL"),
    _signal("SIGKILL"),
    _signal("SIGTERM"),
    Kind("sigint", ("import", *RUNNING), "ReplicaDied", words="interrupted"),
    _hang("sigstop"),
    _hang("stuck-native"),
    _hang("stuck-deaf"),
    _fine("flood", ALL),
    _fine("huge-result"),
    _raises("unpicklable-result", "cannot be sent back"),
    _raises("file-limit", "cannot be sent back"),
    _raises("full-shm", "cannot be sent back", root=True),
    _out_of_memory("out-of-memory"),
    _out_of_memory("out-of-memory-result"),
    _raises("memory-error", "MemoryError"),
    _fine("daemon", _AWAKE),
    _raises("daemon-raise", "ValueError: planned"),
    _fine("closes-streams", _AWAKE),
    _fine("closed-stdin", ("first",)),
    _fine("closed-streams", ("first", "allreduce")),
    _fine("few-descriptors", ("first", "allreduce")),
    Kind("supervisor-killed", _AWAKE, "StartError", words="SIGKILL", outside="supervisor"),
    Kind(
        "supervisor-stopped", ("first", *MEETING), "ReplicaTimeout", limit="timeout",
        outside="supervisor",
    ),
    _fine("template-killed", _AWAKE, outside="template", methods=("forkserver",)),
    _fine("holder-killed", _AWAKE, outside="holder", methods=("forkserver",)),
    _fine("keeper-killed", _AWAKE, outside="keeper", methods=("spawn",)),
    Kind("launcher-killed", ALL, "gone", outside="launcher"),
    Kind("parent-killed", _AWAKE, "gone", outside="launcher"),
)  # fmt: skip


@dataclass(frozen=True)
class Round:
    """One fault at one moment, ready to be run."""

    seed: int
    number: int
    kind: str
    moment: str
    method: str
    nprocs: int
    victim: int
    step: int
    """In collectives: after so many of them."""
    others: str
    """Where nothing fails they return in any case: "return", "wait" for ever, or "deaf", the same
    without hearing SIGTERM."""
    grace: float
    baggage: bool
    """Whether a lock and shared memory travel with the call."""

    @property
    def fault(self) -> Kind:
        kind = next(kind for kind in KINDS if kind.name == self.kind)
        if self.moment == "import" and kind.name.startswith("sys-exit"):
            # A script must not take the process with it that imports it: an error of its import.
            return replace(kind, verdict="ReplicaRaised", exit_code=None, words="exited with")
        return kind

    @property
    def limits(self) -> dict[str, float]:
        """The time limits of the call."""
        limit = self.fault.limit
        if limit == "hang_timeout" and self.moment == "import":
            return {"start_timeout": TOTAL}
        return {limit: self.hang if limit == "hang_timeout" else TOTAL} if limit else {}

    @property
    def hang(self) -> float:
        """Seconds of ``hang_timeout``: on a busy machine a piece of torch's import takes one."""
        return 4 * HANG if self.moment in MEETING and self.method == "spawn" else HANG

    @property
    def total(self) -> float:
        """Of these what counts from the call, in seconds; 0 without."""
        return 0.0 if "hang_timeout" in self.limits else sum(self.limits.values())

    @property
    def rankless(self) -> bool:
        """Whether no replica exists yet: the script is imported once for all."""
        return self.moment == "import" and self.method == "forkserver"

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.fault.outside or f'rank {self.victim}'} of {self.nprocs}, "
            f"{self.moment}, {self.method}, others {self.others}, grace {self.grace}"
        )


def _possible(kind: Kind, moment: str, method: str) -> bool:
    if moment == "import":
        return method != "fork"  # what is forked from the launcher imports nothing
    # Each replica imports torch there, which may take as long as the whole call.
    return kind.limit != "timeout" or method != "spawn" or moment not in MEETING


def draw(seed: int, number: int, root: bool = True) -> Round:
    """The round of this number; as many rounds as there are faults have each of them once."""
    kinds = [kind for kind in KINDS if root or not kind.root]
    lap, place = divmod(number, len(kinds))
    random.Random(f"{seed} {lap}").shuffle(kinds)
    kind, chance = kinds[place], random.Random(f"{seed} {number}")
    method = chance.choice(kind.methods)
    moments = [moment for moment in kind.moments if _possible(kind, moment, method)]
    moment = chance.choice(moments)
    most = 3 if method == "spawn" and moment in MEETING else 4
    nprocs = chance.randint(2, most)
    others = chance.choice(("return", "wait", "deaf"))
    if kind.limit or kind.verdict == "":
        others = "return" if kind.verdict == "" or moment == "late" else "wait"
    return Round(
        seed, number, kind.name, moment, method, nprocs, chance.randrange(nprocs),
        chance.randrange(20), others, chance.choice((0.5, 1.0, 2.0)),
        # Where standard streams are closed, a queue's pipe would be one of them; the tracker of
        # what has names lives for as long as a child of the launcher has its pipe.
        chance.random() < 0.5 and not kind.name.startswith(("closed-", "parent-")),
    )  # fmt: skip
