"""The messages between a driver and the agent of each host, in a launch over an engine's hosts.

An agent is the launcher on its host. It passes its supervisor's reports (``launch``) on to the
driver and the driver's requests on to the launch; results pass through it unopened.
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
    "Describe", "Described", "FilePart", "FilePartRead", "FileSizes", "FilesSized", "FindPath",
    "HostCame", "HostGone", "HostOrder", "HostOver", "HostReached", "HostStopped", "PathFound",
    "Ping", "Pong", "PortsHeld", "Prepare", "StartHost",
]  # fmt: skip


@dataclass(frozen=True)
class HostOrder:
    """Everything that one host needs to run its part of a launch."""

    request: Request
    call: PackedCall
    settings: Settings
    called: int
    """When the user called: monotonic nanoseconds of the receiving host's clock."""
    inherited: dict[str, str] | None
    """The host's environment variables; None: those that its agent was started with."""
    environment: dict[str, str]
    """Further variables for this launch."""
    search_path: list[str] | None
    """``sys.path`` for processes that run no code of the user's; None: the agent's own."""
    program_path: list[str]
    """``sys.path`` of replicas on a machine other than the driver's."""
    events: bool
    """Whether the driver reports events (``events=``)."""
    phases: bool
    """Whether the driver shows the phases of replicas before the function."""


# --- driver -> agent ----------------------------------------------------------------------------


class Describe(NamedTuple):
    """Answer ``Described``."""


class Ping(NamedTuple):
    """Answer ``Pong``; sent to an agent that waits for a launch."""


class FindPath(NamedTuple):
    """Answer ``PathFound``; the fields are those of ``ProgramPath`` in the driver."""

    first: list[str]
    last: list[str]
    folder: str


class FileSizes(NamedTuple):
    """Answer ``FilesSized``."""

    paths: list[str]


class FilePart(NamedTuple):
    """Answer ``FilePartRead``."""

    path: str
    start: int
    size: int


class Prepare(NamedTuple):
    """Start a template that imports these packages: a launch follows."""

    packages: tuple[str, ...]


class StartHost(NamedTuple):
    """One attempt of a launch.

    Descriptors: the image of the call, if it is a file; then three standard streams, if any.
    """

    order: HostOrder
    port: int
    """The port of host 0 at which the hosts meet; 0 for host 0 itself, which answers
    ``PortsHeld``."""


# --- agent -> driver ----------------------------------------------------------------------------


class Described(NamedTuple):
    """The answer to ``Describe``: the facts of the host."""

    facts: HostFacts
    pid: int
    """The agent's pid."""


class Pong(NamedTuple):
    """The agent lives and waits for a launch."""

    at: int
    """Its host's monotonic clock: nanoseconds."""


class PathFound(NamedTuple):
    """``sys.path`` of replicas on this host."""

    path: list[str]


class FilesSized(NamedTuple):
    """Bytes of each file; 0 for what is no regular file, -1 for what is not there."""

    sizes: list[int]


class FilePartRead(NamedTuple):
    """A part of a file, shorter at its end; ``error`` says why it cannot be read."""

    data: bytes
    error: str


class PortsHeld(NamedTuple):
    """Host 0 holds the ports of the launch; ``port`` is the first of them."""

    port: int


class HostCame(NamedTuple):
    """All hosts have come, and this one starts its replicas."""


class HostOver(NamedTuple):
    """The last message of a host: no process of the launch but the agent is left there."""

    kind: str
    """The class of the error on this host; empty if there is none."""
    text: str
    mends: bool = False
    """Whether another attempt may succeed."""
    verdict: HostFailure | None = None
    """The failure of the launch, on whichever host."""
    leftovers: str = ""
    """A description of processes of the launch that still exist nevertheless."""
    memory: OomFinding | None = None
    """The finding of whether the kernel has killed processes of the host for lack of memory."""


# --- the process that holds the stream to a host -> driver --------------------------------------


class HostReached(NamedTuple):
    """The host has answered. ``facts``: what it has, as JSON."""

    facts: str


class HostStopped(NamedTuple):
    """A signal has stopped the agent of the host, or it goes on."""

    stopped: bool


class HostGone(NamedTuple):
    """Nothing more comes from the host; why."""

    text: str
