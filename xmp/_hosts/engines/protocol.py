"""What an engine provides, for each launch over several hosts: hosts, and an agent on each."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from xmp._processes.launcher.link import Link

if TYPE_CHECKING:
    from xmp._processes import Call
    from xmp._processes.messages.hosts import StartHost
    from xmp._words.types import HostFacts, JobPlan, Request

    from .clocks import HostClock
    from .missing import Missing

__all__ = ["Agent", "Engine", "Group", "HostFiles", "HostFound"]


class Agent(Link, Protocol):
    """The agent of one host, as its engine reaches it; ``send`` does not wait for it."""

    name: str
    """What the host is called in errors and prefixes."""
    address: str
    pid: int
    clock: HostClock
    """How far the monotonic clock of its host is ahead of this process's."""

    def start(self, order: StartHost, image: Sequence[int], streams: Sequence[int]) -> None:
        """Send the order of an attempt, with the descriptor of its image, if it has one.

        ``streams``: standard input, output and error for its replicas; the agent's from now on.
        """

    def rest(self) -> None:
        """Close what the attempt, which is over, has written to."""


class HostFound(NamedTuple):
    """A host that an engine has for a launch."""

    name: str
    """What it is called in errors and prefixes."""
    address: str
    facts: HostFacts
    """As its agent sees it: without the variables of what has started that."""


class HostFiles(Protocol):
    """The files of a host that is another machine. All raise OSError, which says why."""

    def sizes(self, paths: Sequence[str]) -> list[int]:
        """In bytes; 0 for one that is not there."""

    def has(self, path: str) -> bool:
        """Return whether this file is there."""

    def parts(self, path: str, start: int, size: int) -> Generator[memoryview, None, None]:
        """Yield ``size`` bytes from ``start`` on; fewer if the file has no more."""


class Group(Protocol):
    """The hosts of a launch, and their agents, which stay for the next one of this process."""

    hosts: Sequence[HostFound]
    """In the order of their indices."""
    environment: Mapping[str, str]
    """Variables for all launches: the name of the job, and its secret."""

    def refuse(self, plan: JobPlan) -> None:
        """Raise PlanError for a plan of host 0 that the hosts cannot carry out."""

    def inherited(self) -> dict[str, str] | None:
        """Return the variables for the next launch; None for those of the agents' start."""

    def search_path(self, index: int) -> list[str] | None:
        """``sys.path`` of an agent, for processes that run no code of the user's.

        None: that which the agent was started with.
        """

    def program_path(self, index: int) -> list[str]:
        """``sys.path`` of replicas on a host; asked for where ``inherited`` gives None."""

    def imports_script(self) -> bool:
        """Return whether hosts import the script again; else what it defines travels by value."""

    def files(self, index: int) -> HostFiles | None:
        """Return the files of a host; None if they are this process's."""

    def advice(self, missing: Missing, command: bool) -> str:
        """Say what to do if a host lacks this; "" if that is the program's own mistake.

        ``command``: ``xmp run`` launches.
        """

    def agents(self) -> Sequence[Agent]:
        """Start those that do not wait for work yet; raises StartError, and leaves none then."""

    def release(self, lost: bool) -> None:
        """Take the group back after a launch; ``lost``: not with all agents."""

    def close(self) -> None:
        """End all agents at once, with all that they have started."""

    def drop(self) -> None:
        """In a forked child of the driver: close what belongs to the parent."""


class Engine(Protocol):
    """Where hosts come from."""

    name: str
    options: Collection[str]
    """The names of options that say how its hosts are prepared, as ``runtime_env``."""

    needs_hosts: bool
    """Whether ``hosts=None`` is refused."""
    wants: str
    """What ``hosts=`` is, for errors."""

    def checked(self, hosts: object) -> Any:
        """Return what ``hosts=`` asks for. Raise PlanError and TypeError."""

    def prepared(self, given: Mapping[str, Any]) -> Engine:
        """Return the engine for a launch with these ``options``. Raise PlanError and TypeError."""

    def group(self, hosts: Any, request: Request, call: Call) -> Group:
        """Return the hosts for a launch. Raise PlanError if there are not so many."""

    def settled(self, request: Request, plan: JobPlan) -> Request:
        """Return the request, with what follows from where the hosts are."""

    def shutdown(self) -> None:
        """End the agents that wait for the next launch."""
