"""When replicas fail: who caused it, what is done about it and when. Pure: events in, actions out.

All times are monotonic nanoseconds. A failure opens a *settle window* (50 ms after the last
event, at most 250 ms after the first): a victim's report may arrive before the culprit's. Then
the stacks of the living are taken and the gang is ended: SIGTERM, grace, SIGKILL, a bounded wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "CAUSE",
    "COLLATERAL",
    "FINISHED",
    "STOPPED",
    "UNKNOWN",
    "Action",
    "Died",
    "Ended",
    "Interrupt",
    "Kill",
    "Raised",
    "Returned",
    "Stop",
    "Tick",
    "Verdict",
    "Watch",
    "is_victim",
]

CAUSE = "cause"
COLLATERAL = "collateral"
STOPPED = "stopped by xmp"
FINISHED = "finished"
UNKNOWN = "unknown"

MILLISECOND = 1_000_000
SETTLE = 50 * MILLISECOND
SETTLE_MOST = 250 * MILLISECOND
KILL_WAIT = 5_000 * MILLISECOND

# What libraries say when somebody else went away (gloo, torch's store and nccl, JAX's
# coordination service, sockets): whoever says this is seldom the first to fail.
_VICTIM = re.compile(
    r"connection (closed|reset|refused)|broken pipe|peer closed|closed by (the )?peer"
    r"|coordination service|barrier.*timed? ?out|heartbeat|socket closed|remote process"
    r"|nccl (communicator|error)|collective.*(abort|timed? ?out)|wait timeout|store.*timed? ?out"
    r"|stopped answering|another task|preempted",
    re.IGNORECASE,
)


def is_victim(words: str) -> bool:
    """Whether a failure's words are those of a replica whose peer went away."""
    return _VICTIM.search(words) is not None


@dataclass(frozen=True)
class Returned:
    """The function returned, or ended by ``sys.exit(0)``; the process still has to end."""

    rank: int
    at: int


@dataclass(frozen=True)
class Raised:
    """A replica says that it failed; ``words`` are those of its exception."""

    rank: int
    at: int
    words: str = ""
    interrupted: bool = False


@dataclass(frozen=True)
class Ended:
    """A replica's process has ended: ``signal`` is its number, 0 if it exited."""

    rank: int
    at: int
    exit_code: int = 0
    signal: int = 0
    words: str = ""
    """Its last words on standard error."""


@dataclass(frozen=True)
class Interrupt:
    """The user pressed Ctrl-C."""

    at: int


@dataclass(frozen=True)
class Stop:
    """The launcher asks to end everything in order."""

    at: int


@dataclass(frozen=True)
class Kill:
    """The launcher asks to end everything now."""

    at: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    at: int


Event = Returned | Raised | Ended | Interrupt | Stop | Kill | Tick


@dataclass(frozen=True)
class Action:
    """What the supervisor shall do: "stacks", "SIGINT", "SIGTERM", "SIGKILL" or "finish"."""

    name: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Died:
    """One failure as it was noticed."""

    at: int
    words: str
    recorded: bool
    asked: bool = False
    """It ended by a signal of ours."""


@dataclass(frozen=True)
class Verdict:
    """Who failed first and what became of everybody, by rank."""

    cause: int | None
    labels: Mapping[int, str]
    order: tuple[int, ...] = ()
    """The ranks that failed, the cause first, then by time."""
    unkillable: tuple[int, ...] = ()


@dataclass
class Watch:
    """The state of one launch on one host. Feed it events, do what it says, ask ``deadline``."""

    ranks: Iterable[int]
    grace: int
    """Nanoseconds between SIGTERM (or SIGINT) and the next stronger signal."""
    phase: str = "running"
    live: set[int] = field(init=False)
    deadline: int | None = None
    """When the next Tick is due."""
    _returned: set[int] = field(default_factory=set)
    _failures: dict[int, Died] = field(default_factory=dict)
    _first: int = 0

    def __post_init__(self) -> None:
        self.live = set(self.ranks)

    def feed(self, event: Event) -> list[Action]:
        """Take one event in; returns what to do now."""
        actions: list[Action] = []
        if isinstance(event, Returned):
            self._returned.add(event.rank)
        elif isinstance(event, Raised):
            self._failed(event.rank, Died(event.at, event.words, recorded=True))
        elif isinstance(event, Ended):
            self._ended(event)
        elif isinstance(event, Interrupt):
            actions = self._interrupt(event.at)
        elif isinstance(event, (Stop, Kill)):
            actions = self._stop(event.at) if isinstance(event, Stop) else self._kill(event.at)
        if not self.live and self.phase != "done":
            self.phase, self.deadline = "done", None
            return [*actions, Action("finish")]
        return actions or self._due(event.at)

    # --- events --------------------------------------------------------------------------------

    def _failed(self, rank: int, death: Died) -> None:
        self._failures.setdefault(rank, death)
        if self.phase == "running":
            self.phase, self._first = "settling", death.at
        if self.phase == "settling":
            self.deadline = min(death.at + SETTLE, self._first + SETTLE_MOST)

    def _ended(self, event: Ended) -> None:
        self.live.discard(event.rank)
        clean = event.signal == 0 and event.exit_code == 0
        if event.rank in self._failures or clean:
            return
        if event.rank in self._returned and self._asked():
            return  # it had its result; what it still did at its end does not matter any more
        asked = self._asked() and event.signal in (2, 9, 15)
        self._failed(event.rank, Died(event.at, event.words, recorded=False, asked=asked))

    def _asked(self) -> bool:
        return self.phase in ("interrupting", "stopping", "killing")

    # --- actions -------------------------------------------------------------------------------

    def _due(self, now: int) -> list[Action]:
        if self.deadline is None or now < self.deadline:
            return []
        if self.phase == "settling":
            return [Action("stacks", self._living()), *self._stop(now)]
        if self.phase == "interrupting":
            return self._stop(now)
        if self.phase == "stopping":
            return self._kill(now)
        if self.phase == "killing":
            self.phase, self.deadline = "done", None
            return [Action("finish")]
        return []

    def _living(self) -> tuple[int, ...]:
        return tuple(sorted(self.live))

    def _interrupt(self, now: int) -> list[Action]:
        if self._asked():
            return self._kill(now)
        self.phase, self.deadline = "interrupting", now + self.grace
        return [Action("SIGINT", self._living())]

    def _stop(self, now: int) -> list[Action]:
        if self.phase in ("stopping", "killing"):
            return []
        self.phase, self.deadline = "stopping", now + self.grace
        return [Action("SIGTERM", self._living())]

    def _kill(self, now: int) -> list[Action]:
        self.phase, self.deadline = "killing", now + KILL_WAIT
        return [Action("SIGKILL", self._living())]

    # --- the verdict ---------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Who failed first, as far as is known now."""
        times = {rank: self._dated(death) for rank, death in self._failures.items()}
        order = sorted(times, key=lambda rank: (times[rank], rank))
        cause = next((r for r in order if not self._failures[r].asked), None)
        labels = {rank: self._label(rank, cause) for rank in (*self._failures, *self._others())}
        if cause is not None:
            order.remove(cause)
            order.insert(0, cause)
        return Verdict(cause, labels, tuple(order), self._living())

    def _others(self) -> set[int]:
        return (self._returned | self.live) - set(self._failures)

    def _dated(self, death: Died) -> tuple[int, int]:
        """Victims sort behind everybody else; a death without a record, which could not tell its
        time itself, is dated back to the earliest victim."""
        victims = [d.at for d in self._failures.values() if _victim(d)]
        if _victim(death) or death.asked:
            return (1, death.at)
        if not death.recorded and victims:
            return (0, min(death.at, min(victims) - 1))
        return (0, death.at)

    def _label(self, rank: int, cause: int | None) -> str:
        death = self._failures.get(rank)
        if death is None:
            return FINISHED if rank in self._returned else UNKNOWN
        if rank == cause:
            return CAUSE
        if death.asked:
            return STOPPED
        return COLLATERAL if _victim(death) else UNKNOWN


def _victim(death: Died) -> bool:
    return is_victim(death.words) and not death.asked
