"""Values of a launch over several hosts that both the engine and the carrier between hosts use."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["HostFailure", "HostMeeting"]


@dataclass(frozen=True)
class HostMeeting:
    """Where the launchers of all hosts meet, and which of them this is."""

    index: int
    hosts: int
    address: str
    """The address at which the other hosts reach host 0."""
    port: int
    job: str = ""
    """The job's name at the launcher that placed the hosts, the same on all; empty if unknown."""
    open: bool = False
    """Whether this is the plan of host 0 for a host that does not know its index."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """The names or addresses that the scheduler gives the hosts, by index; empty where unknown."""


@dataclass(frozen=True)
class HostFailure:
    """How the launch has failed on one host. The verdict on the launch is one of these."""

    host: int = -1
    """The index of the host, which the coordinator knows from the connection that reported it."""
    name: str = ""
    """The name of that host."""
    rank: int = -1
    """The global rank of the replica that failed; -1 where the host itself failed."""
    local_rank: int = -1
    pid: int = -1
    kind: str = ""
    """The class of the error there: "ReplicaRaised", "HostLost"."""
    text: str = ""
    """The whole report, with the replica's traceback."""
    exit_code: int = 0
    """The exit code of the replica's process; 0 where it is not known."""
    signal_name: str = ""
    how: str = ""
    """How the replica ended: "raised", "exit", "signal" …, as in the launcher's record of it."""
    error_type: str = ""
    """The class of its exception; ``message`` and ``traceback`` are those of this exception."""
    message: str = ""
    traceback: str = ""
    symptom: bool = False
    """Whether it looks like the consequence of another failure: a connection that a peer closed."""
    final: bool = False
    """Whether no further attempt (``max_restarts``) follows it on any host."""
    attempt: int = 0
