"""The rules for a failing launch: which rank caused it, what to do, and when.

Pure: events in, actions out. All times are monotonic nanoseconds. A failure opens a *settle window*
(until 50 ms after the last event, at most 250 ms after the first): a victim's report may arrive
before that of the rank which caused it. Then xmp takes the stacks of the live replicas, gives them
``patience`` (0 s unless asked for) to end by themselves, and ends them: SIGTERM (SIGINT after a
Ctrl-C), grace, SIGKILL, a bounded wait. A launch that exceeds a time limit (``limits``) ends in the
same way, without a cause and without patience.

**A gang's call** has a ``Watch`` of its own (``keeps``). Ranks that are done with it wait at their
post. After a failure, or beyond a limit, those inside get SIGINT; if all come to their posts within
``grace``, the call is over and the replicas live on. If one does not, or a process ends, the gang
is lost: it ends as a launch does. Between calls a Watch has all ranks at their posts (``at_rest``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from xmp._words.types import Limits

from .limits import Clocks, Overdue
from .watch_events import (
    AtPost,
    CallOff,
    Ended,
    Entered,
    Interrupt,
    Kill,
    Leave,
    Pause,
    Progress,
    Raised,
    Resume,
    Returned,
    Stop,
    Stuck,
    WatchEvent,
)

__all__ = [
    "CAUSE", "COLLATERAL", "FINISHED", "STOPPED", "UNKNOWN", "Action", "Died", "Verdict", "Watch",
    "is_victim",
]  # fmt: skip

CAUSE = "cause"
COLLATERAL = "collateral"
STOPPED = "stopped by xmp"
FINISHED = "finished"
UNKNOWN = "unknown"

MILLISECOND = 1_000_000
SETTLE = 50 * MILLISECOND
SETTLE_MOST = 250 * MILLISECOND
KILL_WAIT = 5_000 * MILLISECOND
SIGINT, SIGKILL, SIGTERM = 2, 9, 15  # the same on every system

# What libraries report when a peer has gone (gloo, torch's store and nccl, JAX's coordination
# service, sockets): a replica that fails with such a message is seldom the first to fail.
_VICTIM = re.compile(
    r"connection (closed|reset|refused)|broken pipe|peer closed|closed by (the )?peer"
    r"|coordination service|barrier.*timed? ?out|heartbeat|socket closed|remote process"
    r"|nccl (communicator|error)|collective.*(abort|timed? ?out)|wait timeout|store.*timed? ?out"
    r"|stopped answering|another task|preempted",
    re.IGNORECASE,
)


def is_victim(words: str) -> bool:
    """Return whether the text of a failure says that a peer has gone."""
    return _VICTIM.search(words) is not None


@dataclass(frozen=True)
class Action:
    """One thing that the supervisor must do to these ranks."""

    name: str
    """"stacks" (take them), "SIGINT", "SIGTERM", "SIGKILL" (send it), "phases" (report where they
    are: they have not reached the function), "over" (the call is over, and all ranks are at their
    posts; no ranks), or "finish" (the launch is over; no ranks)."""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Died:
    """One failure, as xmp first noticed it."""

    at: int
    words: str
    """The text of its exception, or the last lines on its standard error."""
    recorded: bool
    """Whether the replica itself reported it."""
    by_xmp: bool = False
    """Whether it ended by a signal from xmp, or by ``sys.exit`` after one."""


@dataclass(frozen=True)
class Verdict:
    """Which rank failed first, and what happened to each."""

    cause: int | None
    labels: Mapping[int, str]
    """``CAUSE``, ``COLLATERAL``, ``STOPPED``, ``FINISHED`` or ``UNKNOWN``, by rank."""
    order: tuple[int, ...] = ()
    """The ranks that failed, the cause first, then by time."""
    times: Mapping[int, int] = field(default_factory=dict)
    """When each of them failed; a death noticed later than those of its victims is dated back."""
    overdue: Overdue | None = None
    """The limit that ended the launch; ``cause`` is None then."""


@dataclass
class Watch:
    """The state of one launch on one host: feed it events, and a Tick at each ``deadline``."""

    ranks: Iterable[int]
    grace: int
    """Nanoseconds between SIGTERM, or the SIGINT of a Ctrl-C, and SIGKILL."""
    limits: Limits = field(default_factory=Limits)
    called: int = 0
    begun: int = 0
    """When the last replica was started."""
    patience: int = 0
    """Nanoseconds between the settle window of a failure and SIGTERM."""
    stays: bool = False
    """True: the ranks live on after the call, and no process ends well before ``Leave``."""
    keeps: bool = False
    """True: they do so after a failure, too, if all can come back to their posts."""
    phase: str = "running"
    """"running", "settling", "leaving", "recalling", "interrupting", "stopping", "killing", "over"
    (all are at their posts) or "done"."""
    live: set[int] = field(init=False)
    """The ranks that take part: not those at their posts, until the gang is lost."""
    _posts: set[int] = field(default_factory=set)
    """The ranks at their posts."""
    _lost: bool = False
    """True: the gang ends, and those at their posts are live, too."""
    _clocks: Clocks = field(init=False)
    _overdue: Overdue | None = None
    _step: int | None = None
    """When the phase ends."""
    _returned: set[int] = field(default_factory=set)
    """The ranks that have returned, or whose process has exited with 0."""
    _failures: dict[int, Died] = field(default_factory=dict)
    _first: int = 0
    """When the first failure was noticed."""
    _sent: set[int] = field(default_factory=set)
    """The signals that xmp has sent. A replica may die of another one meanwhile, or be dying
    already: the kernel closes its sockets, and its peers fail, before its end can be noticed."""

    def __post_init__(self) -> None:
        self.live = set(self.ranks)
        self._clocks = Clocks(self.live, self.limits, self.called, self.begun)

    @classmethod
    def at_rest(cls, ranks: Iterable[int], grace: int) -> Watch:
        """Return the Watch of a gang between two calls."""
        watch = cls((), grace, stays=True, phase="over")
        watch._posts = set(ranks)
        return watch

    @property
    def deadline(self) -> int | None:
        """When the next Tick is due."""
        if self._clocks.paused:
            return None
        return self._clocks.deadline if self.phase == "running" else self._step

    @property
    def is_paused(self) -> bool:
        """Whether no clock runs: the user has stopped the launch, or debugs a replica."""
        return self._clocks.paused

    def feed(self, event: WatchEvent) -> list[Action]:
        """Take one event; return what to do now."""
        actions = self._take(event)
        if not self.live and self.phase not in ("over", "done"):
            self.phase, self._step = "over" if self._posts else "done", None
            return [*actions, Action("over" if self._posts else "finish")]
        return actions or self._due(event.at)

    # --- events --------------------------------------------------------------------------------

    def _take(self, event: WatchEvent) -> list[Action]:
        self._wind_clocks(event)
        if isinstance(event, Returned):
            self._returned.add(event.rank)
        elif isinstance(event, Raised):
            recalled = event.interrupted and self.phase == "recalling"
            by_xmp = recalled or (event.exits and self._ending())
            self._failed(event.rank, Died(event.at, event.words, recorded=True, by_xmp=by_xmp))
        elif isinstance(event, AtPost):
            if self._lost:
                return []  # it is there to be ended
            self.live.discard(event.rank)
            self._posts.add(event.rank)
        elif isinstance(event, Ended):
            return self._ended(event)
        else:
            return self._asked(event)
        return []

    def _asked(self, event: WatchEvent) -> list[Action]:
        """Take what the launcher asks for."""
        if isinstance(event, CallOff):
            return self._recall(event.at) if self.phase == "running" else []
        if isinstance(event, Interrupt):
            return self._interrupt(event.at)
        if isinstance(event, (Stop, Stuck)):
            self._lose()  # a gang is not kept
            return self._stop(event.at)
        if isinstance(event, Kill):
            return self._kill(event.at)
        if isinstance(event, Leave):
            self._lose()
            self.stays = False
            self._returned |= self.live
        return []

    def _wind_clocks(self, event: WatchEvent) -> None:
        if isinstance(event, Progress):
            # What a rank does after its function is no progress for those that still wait for it.
            if event.rank not in self._returned or self.live <= self._returned:
                self._clocks.progress(event.rank, event.at)
        elif isinstance(event, (Entered, Returned, Ended)):
            self._clocks.arrived(event.rank, event.at)
        elif isinstance(event, Pause):
            self._clocks.pause(event.at, event.why)
        elif isinstance(event, Resume):
            self._clocks.resume(event.at, event.why)

    def _failed(self, rank: int, death: Died) -> None:
        self._failures.setdefault(rank, death)
        if self.phase == "running":
            self.phase, self._first = "settling", death.at
        if self.phase == "settling":
            self._step = min(death.at + SETTLE, self._first + SETTLE_MOST)

    def _lose(self) -> None:
        """Note that the gang ends: those at their posts are waited for, too."""
        self._lost = True
        if self._posts and self.phase == "over":
            self.phase = "running"
        self.live |= self._posts
        self._posts.clear()
        self.keeps = False

    def _ended(self, event: Ended) -> list[Action]:
        self._lose()
        self.live.discard(event.rank)
        self._note_end(event)
        return self._stop(event.at) if self.phase == "recalling" and self.live else []

    def _note_end(self, event: Ended) -> None:
        if event.rank in self._failures:
            return
        if event.signal == 0 and event.exit_code == 0 and not self.stays:
            self._returned.add(event.rank)
            return
        if event.rank in self._returned and self._ending():
            return  # it had returned; how its process ended no longer matters
        by_xmp = event.signal in self._sent
        self._failed(event.rank, Died(event.at, event.words, recorded=False, by_xmp=by_xmp))

    def _ending(self) -> bool:
        return self.phase in ("interrupting", "stopping", "killing")

    # --- actions -------------------------------------------------------------------------------

    def _due(self, now: int) -> list[Action]:
        if self._clocks.paused:
            return []
        if self.phase == "running":
            return self._out_of_time(now)
        if self._step is None or now < self._step:
            return []
        if self.phase == "settling":
            stacks = Action("stacks", self._living())
            if not self.patience:
                return [stacks, *self._stop(now)]
            self.phase, self._step = "leaving", now + self.patience
            return [stacks]
        if self.phase == "leaving":
            return self._stop(now)
        if self.phase == "recalling":
            self._lose()
            return self._stop(now)
        if self._ending() and self.phase != "killing":
            return self._kill(now)
        self.phase, self._step = "done", None
        return [Action("finish")]

    def _out_of_time(self, now: int) -> list[Action]:
        self._overdue = self._clocks.overdue(now, self.live, self._returned)
        if self._overdue is not None:
            return [Action("stacks", self._living()), *self._stop(now)]
        late = self._clocks.late(now)
        return [Action("phases", late)] if late else []

    def _living(self) -> tuple[int, ...]:
        return tuple(sorted(self.live))

    def _recall(self, now: int) -> list[Action]:
        """Have those inside the call come back to their posts."""
        self.phase, self._step = "recalling", now + self.grace
        self._sent |= {SIGINT, SIGTERM}  # those that ignore the one get the other
        return [Action("stacks", self._living()), Action("SIGINT", self._living())]

    def _interrupt(self, now: int) -> list[Action]:
        if self._ending():
            return self._kill(now)
        if self._posts:  # where SIGINT means nothing
            self._lose()
            return [Action("stacks", self._living()), *self._stop(now)]
        self.phase, self._step = "interrupting", now + self.grace
        self._sent |= {SIGINT, SIGTERM}  # those that ignore the one get the other
        return [Action("stacks", self._living()), Action("SIGINT", self._living())]

    def _stop(self, now: int) -> list[Action]:
        if self.phase in ("stopping", "killing"):
            return []
        if self.keeps:
            return self._recall(now)[1:]  # with the stacks that were taken just now
        self._lose()
        self.phase, self._step = "stopping", now + self.grace
        self._sent.add(SIGTERM)
        return [Action("SIGTERM", self._living())]

    def _kill(self, now: int) -> list[Action]:
        self._lose()
        self.phase, self._step = "killing", now + KILL_WAIT
        self._sent.add(SIGKILL)
        return [Action("SIGKILL", self._living())]

    # --- the verdict ---------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Return which rank failed first, as far as is known now, and what happened to each."""
        times = {rank: self._dated(death) for rank, death in self._failures.items()}
        order = sorted(times, key=lambda rank: (times[rank], rank))
        cause = next((r for r in order if not self._stopped(self._failures[r])), None)
        labels = {rank: self._label(rank, cause) for rank in (*self._failures, *self._others())}
        if cause is not None:
            order.remove(cause)
            order.insert(0, cause)
        at = {rank: time for rank, (_, time) in times.items()}
        return Verdict(cause, labels, tuple(order), at, self._overdue)

    def _others(self) -> set[int]:
        return (self._returned | self.live) - set(self._failures)

    def _dated(self, death: Died) -> tuple[int, int]:
        """Return a sort key: by time, and victims after all others.

        A death that the replica did not report has only the time when xmp noticed it: it is dated
        back to before the earliest victim.
        """
        victims = [d.at for d in self._failures.values() if _victim(d)]
        if _victim(death) or death.by_xmp:
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
        if self._stopped(death):
            return STOPPED
        return COLLATERAL if _victim(death) else UNKNOWN

    def _stopped(self, death: Died) -> bool:
        """Return whether xmp ended it; beyond a limit xmp ends all, however they exit."""
        return death.by_xmp or self._overdue is not None


def _victim(death: Died) -> bool:
    return is_victim(death.words) and not death.by_xmp
