"""What ``spawn(events=…)`` reports, and its lines in a file."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Event"]


@dataclass(frozen=True)
class Event:
    """One change of a launch's state, as ``spawn(events=…)`` reports it.

    A file of events has one JSON object per line; its keys are the fields of this class, in this
    order. The events of a launch come in the order of time.

    ``name`` is one of these for the launch as a whole (``rank`` is None, but for "verdict")::

        "planned"    the launch is planned; the first event of every attempt
        "started"    the supervisor has loaded the function and starts the replicas
        "stopping"   xmp sends a signal to replicas; message names the signal and the ranks
        "paused"     the user has stopped the launch (Ctrl-Z), or debugs a replica
        "resumed"    the launch continues
        "waiting"    ranks wait in a collective for others, longer than XMP_HANG_NOTICE allows;
                     message says for which, and where these are
        "verdict"    the launch has failed; message says how, rank is the replica that
                     caused it (None after a time-out)
        "finished"   the last event: no process of the launch is left. message names the
                     exception, and is empty if all went well

    For one replica::

        "forked"     its process exists
        "importing"  it imports what it needs (not where it was forked from a process that had)
        "joining"    it sets up its framework: device, process group
        "running"    the function begins
        "returned"   the function has returned, or ended by sys.exit(0)
        "raised"     the function, or the code before it, raised or called sys.exit with a
                     failure; message has the exception
        "exited"     its process ended as expected after "returned" or "raised"
        "stopped"    its process ended by a signal that xmp had sent
        "died"       its process ended in any other way, by signal or with exit_code
    """

    name: str
    elapsed: float
    """Seconds since the call; never less than in the event before."""
    time: float
    """Seconds since 1970 (Unix time): the host's clock at the call, plus ``elapsed``."""
    launch_id: str
    """Identifies the launch on this host: ``<pid of the launcher>-<count of its launches>``.
    All attempts of one call share it."""
    rank: int | None = None
    """The replica's global rank."""
    pid: int | None = None
    """The replica's process; the supervisor's for "started", the launcher's for "planned"."""
    exit_code: int | None = None
    """The exit code of the process, where it exited."""
    signal: str | None = None
    """The name of the signal that ended the process ("SIGKILL"), where one did."""
    message: str = ""
    """Details, for people; see the names above."""
    restart: int = 0
    """The attempt: how often ``max_restarts`` had restarted the replicas by then."""
    version: int = 2
    """The version of this format; it changes when a field changes its name or meaning."""
