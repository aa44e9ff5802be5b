"""Engines: each finds hosts, starts an agent on each of them, and carries bytes to and from it.

What travels (``messages/hosts``), what an agent does (``agent``) and the driver's handle (``job``)
are the same for all engines. A new engine is one module and one row in the registry.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsIndex, cast

from xmp import _registry
from xmp._words.errors import PlanError

if TYPE_CHECKING:
    from xmp._calls.job import Job
    from xmp._processes import Call, Results
    from xmp._processes.messages.catalog import Message
    from xmp._processes.messages.hosts import StartHost
    from xmp._words.types import HostFacts, JobPlan, Request

    from .clocks import HostClock
    from .gathered_logs import HostFiles
    from .missing import Missing

__all__ = [
    "Agent",
    "Engine",
    "Group",
    "HostFound",
    "checked",
    "count_of",
    "launch",
    "shown",
    "shutdown",
]

_GROUP = "engines"
_theirs: dict[str, Engine] = {}
"""Engines of other distributions that this process has used, by name."""


class Agent(Protocol):
    """The agent of one host, as its engine reaches it."""

    index: int
    name: str
    """What the host is called in errors and prefixes."""
    address: str
    pid: int
    clock: HostClock
    """How far the monotonic clock of its host is ahead of this process's."""

    def fileno(self) -> int:
        """Readable when there is something to receive."""

    def readable(self) -> bool: ...

    def start(self, order: StartHost, image: Sequence[int], streams: Sequence[int]) -> None:
        """Send the order of an attempt, with the descriptor of its image, if it has one.

        ``streams``: standard input, output and error for its replicas; the agent's from now on.
        """

    def send(self, message: Message) -> None:
        """Send without waiting for the agent; Closed if it has ended."""

    def recv(self) -> tuple[Message, list[int]]:
        """The next message, with the files that hold large results; Closed after the last one."""

    def kill(self) -> None:
        """End it at once, with all that it has started."""

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it (SIGSTOP)."""

    def how_it_ended(self) -> str:
        """For a person: "was killed by SIGKILL"."""

    def rest(self) -> None:
        """The attempt is over: close what it has written to."""


class HostFound(NamedTuple):
    """A host that an engine has for a launch."""

    name: str
    """What it is called in errors and prefixes."""
    address: str
    facts: HostFacts
    """As its agent sees it: without the variables of what has started that."""


class Group(Protocol):
    """The hosts of a launch, and their agents, which stay for the next one of this process."""

    hosts: Sequence[HostFound]
    """In the order of their indices."""
    environment: Mapping[str, str]
    """Variables for all launches: the name of the job, and its secret."""

    def refuse(self, plan: JobPlan) -> None:
        """Raise PlanError for a plan of host 0 that the hosts cannot carry out."""

    def inherited(self) -> dict[str, str] | None:
        """The variables for the next launch; None: those that the agents were started with."""

    def search_path(self, index: int) -> list[str] | None:
        """``sys.path`` of an agent, for processes that run no code of the user's.

        None: that which the agent was started with.
        """

    def program_path(self, index: int) -> list[str]:
        """``sys.path`` of replicas on a host; asked for where ``inherited`` gives None."""

    def imports_script(self) -> bool:
        """Whether hosts import the script again; if not, what it defines travels by value."""

    def files(self, index: int) -> HostFiles | None:
        """Those of a host; None where they are this process's."""

    def advice(self, missing: Missing, command: bool) -> str:
        """What to do where a host lacks this; "" where that is the program's own mistake.

        ``command``: ``xmp run`` launches.
        """

    def agents(self) -> Sequence[Agent]:
        """Start those that do not wait for work yet; raises StartError, and leaves none then."""

    def release(self, lost: bool) -> None:
        """The launch is over; ``lost``: not with all agents."""

    def close(self) -> None:
        """End all agents at once, with all that they have started."""

    def drop(self) -> None:
        """In a forked child of the driver: close what belongs to the parent."""


class Engine(Protocol):
    """Where hosts come from."""

    name: str

    def checked(self, hosts: object) -> Any:
        """What ``hosts=`` asks for; raises PlanError and TypeError."""

    def with_runtime_env(self, runtime_env: object) -> Engine:
        """The same engine for a launch whose hosts get this; raises PlanError and TypeError."""

    def group(self, hosts: Any, request: Request, call: Call) -> Group:
        """The hosts for a launch; raises PlanError where there are not so many."""

    def settled(self, request: Request, plan: JobPlan) -> Request:
        """The request, with what follows from where the hosts are."""

    def shutdown(self) -> None:
        """End the agents that wait for the next launch."""


def checked(hosts: object, engine: object, runtime_env: object = None) -> tuple[Engine, Any]:
    """``engine``, ``hosts``, ``runtime_env`` of ``launch``; raises PlanError and TypeError."""
    known = _registry.names(_GROUP)
    names = ", ".join(repr(name) for name in known)
    if engine is not None and not isinstance(engine, str):
        kind = type(engine).__name__
        raise TypeError(f"engine must be one of {names}, or None, not {kind}: {shown(engine)}")
    if engine is None and hosts is None:
        raise PlanError(
            'runtime_env= without engine=: Ray alone prepares hosts by it. Give engine="ray" and '
            "hosts=, or env= for variables of replicas"
        )
    if engine is None:
        raise PlanError(
            f"hosts={shown(hosts)} without engine=: say what starts the function on the hosts. "
            'Allowed: engine="ray" (hosts of a Ray cluster), "local" (hosts that this machine '
            "plays, for tests). Where a scheduler starts this program on each host, give neither: "
            "the program calls xmp.spawn there"
        )
    found: Engine = _found(engine, known)
    if hosts is None:
        raise PlanError(f"engine={engine!r} without hosts=: give the number of hosts, from 1 up")
    count = found.checked(hosts)
    return (found if runtime_env is None else found.with_runtime_env(runtime_env)), count


def _found(name: str, known: Sequence[str]) -> Engine:
    """The engine of this name, ours or another distribution's; raises PlanError."""
    if name in known:
        ours: Engine = _registry.require(_GROUP, name)
        return ours
    others = _registry.foreign(_GROUP)
    if name in others:
        return _theirs.setdefault(name, others[name].load())
    allowed = (*known, *others)
    near = get_close_matches(name.lower(), allowed, 1)
    meant = f". Did you mean {near[0]!r}?" if near else ""
    raise PlanError(
        f"engine={shown(name)}: xmp has no engine of this name. Allowed: "
        f"{', '.join(map(repr, allowed))}{meant}"
    )


_reprs = reprlib.Repr()
_reprs.maxstring = _reprs.maxother = 80


def shown(given: object) -> str:
    """What the user gave, as errors have it: a node id whole, a long text or list shortened."""
    return _reprs.repr(given)


def count_of(hosts: object, otherwise: str = "") -> int:
    """``hosts=`` as a number; PlanError, TypeError. ``otherwise``: what else is allowed."""
    try:
        count = operator.index(cast(SupportsIndex, hosts))
    except TypeError:
        count = None
    if count is None or isinstance(hosts, bool):
        kind = type(hosts).__name__
        raise TypeError(
            f"hosts must be a whole number from 1 up{otherwise}, not {kind}: {shown(hosts)}"
        )
    if count < 1:
        raise PlanError(f"hosts={count}: give a whole number from 1 up{otherwise}")
    return count


def launch(
    engine: Engine, hosts: Any, request: Request, call: Call, join: bool
) -> Job[Any] | Results[Any]:
    """Run the call on hosts of an engine, as ``xmp.launch`` describes it."""
    from .driver import launched

    return launched(engine, hosts, request, call, join)


def shutdown() -> None:
    """End the agents that wait for the next launch of this process."""
    for engine in (*_registry.loaded(_GROUP), *_theirs.values()):
        engine.shutdown()
