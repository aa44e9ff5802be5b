"""What a driver and the agent of each host send each other: a launch over hosts of an engine.

An agent is the launcher on its host. It passes on to the driver what its supervisor reports
(``launch``), and to the launch what the driver asks for; results pass it unopened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from xmp._words.host_words import HostFailure
from xmp._words.types import HostFacts, Request, Settings

from .order import PackedCall

if TYPE_CHECKING:
    from xmp._processes.report.out_of_memory import OomFinding

__all__ = [
    "Describe",
    "Described",
    "HostCame",
    "HostOrder",
    "HostOver",
    "Ping",
    "Pong",
    "PortsHeld",
    "Prepare",
    "StartHost",
]


@dataclass(frozen=True)
class HostOrder:
    """What one host runs, and how."""

    request: Request
    call: PackedCall
    settings: Settings
    called: int
    """When the user called: monotonic nanoseconds, by the clock of the host when it is sent."""
    inherited: dict[str, str] | None
    """The variables of the host; None: those that its agent was started with."""
    environment: dict[str, str]
    """Variables for this launch beside them."""
    search_path: list[str] | None
    """``sys.path`` for processes that run no code of the user's; None: the agent's own."""
    program_path: list[str]
    """``sys.path`` of the replicas of another machine than the driver's."""
    events: bool
    """Whether the driver reports events (``events=``)."""
    phases: bool
    """Whether the driver shows what replicas do before the function."""


# --- driver -> agent ----------------------------------------------------------------------------


class Describe(NamedTuple):
    """Answer ``Described``."""


class Ping(NamedTuple):
    """Answer ``Pong``: asked of an agent that waits for a launch."""


class Prepare(NamedTuple):
    """Start a template that imports these packages: a launch follows."""

    packages: tuple[str, ...]


class StartHost(NamedTuple):
    """One attempt of a launch.

    Descriptors: the image of the call, if it is a file; then three standard streams, if any.
    """

    order: HostOrder
    port: int
    """At which the hosts meet on host 0; 0 for host 0 itself: it answers ``PortsHeld``."""


# --- agent -> driver ----------------------------------------------------------------------------


class Described(NamedTuple):
    """What the host is."""

    facts: HostFacts
    pid: int
    """Of the agent."""


class Pong(NamedTuple):
    """The agent is there, and waits."""


class PortsHeld(NamedTuple):
    """Host 0 holds the ports of the launch, of which this one is the first."""

    port: int


class HostCame(NamedTuple):
    """All hosts have come, and this one starts its replicas."""


class HostOver(NamedTuple):
    """The last message of a host, of which no process but the agent is left."""

    kind: str
    """The class of the error here, if there is one."""
    text: str
    mends: bool = False
    """Whether another attempt may succeed."""
    verdict: HostFailure | None = None
    """How the launch has failed, on whichever host."""
    leftovers: str = ""
    """Which processes of it still exist all the same."""
    memory: OomFinding | None = None
    """Whether the kernel has killed processes of the host for lack of memory."""
