"""Words for a launch over several hosts that both the engine and the carrier between hosts use."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["HostFailure", "HostMeeting"]


@dataclass(frozen=True)
class HostMeeting:
    """Where the launchers of all hosts meet, and which of them this is."""

    index: int
    hosts: int
    address: str
    """Host 0's, for the others."""
    port: int
    job: str = ""
    """What the launcher that placed the hosts calls their job, on all of them; empty if unknown."""
    open: bool = False
    """Whether this is the plan of host 0 for a host that does not know its index."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """What the scheduler calls the hosts, by index: names or addresses, empty where unknown."""


@dataclass(frozen=True)
class HostFailure:
    """How the launch has failed on one host; also the verdict, which is one of them."""

    host: int = -1
    """The index of the host, by the connection on which the coordinator hears of it."""
    name: str = ""
    """The name of that host."""
    rank: int = -1
    """The global rank of the replica that failed; -1: none, the host itself."""
    local_rank: int = -1
    pid: int = -1
    kind: str = ""
    """The class of the error there: "ReplicaRaised", "HostLost"."""
    text: str = ""
    """The whole report, with the replica's traceback."""
    exit_code: int = 0
    """0 where it is not known."""
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
