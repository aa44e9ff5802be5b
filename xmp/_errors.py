"""The exceptions of xmp.

XmpError
  PlanError        the request and this host do not fit; no process exists yet (ValueError)
  PortError        a port that the plan needs could not be held (RuntimeError)
  StartError       a process of ours did not come up (RuntimeError)
  ReplicaError     a replica failed (RuntimeError)
    ReplicaRaised    its function raised; ``__cause__`` is the original where it pickles
    ReplicaDied      it ended without returning: signal, exit code
    ReplicaTimeout   it took too long (TimeoutError)
  HostLost         an agent or its host is gone (RuntimeError)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "HostLost",
    "PlanError",
    "PortError",
    "ReplicaDied",
    "ReplicaError",
    "ReplicaRaised",
    "ReplicaTimeout",
    "StartError",
    "XmpError",
]


class XmpError(Exception):
    """Base of every error that xmp raises itself.

    With ``max_restarts``, ``history`` has the errors of the attempts before, in their order.
    """

    history: Sequence[Exception] = ()


class PlanError(XmpError, ValueError):
    """The request and this host do not fit; says what was given and what fits."""


class PortError(XmpError, RuntimeError):
    """A port that the plan needs could not be held."""


class StartError(XmpError, RuntimeError):
    """A process of ours did not come up; says which, and which limit stood in the way."""


class HostLost(XmpError, RuntimeError):
    """An agent or its host is gone."""


class ReplicaError(XmpError, RuntimeError):
    """A replica failed, and the launch with it.

    The attributes describe the cause; ``failures`` has every replica that failed, the cause
    first, and ``results`` what the others had already returned, by rank.
    """

    rank: int = -1
    local_rank: int = -1
    host: str = ""
    pid: int = -1
    exit_code: int | None = None
    signal_name: str | None = None
    failures: Sequence[Any] = ()
    results: Mapping[int, Any] = {}
    stacks: Mapping[int, str] = {}
    _render_traceback_: ClassVar[Callable[[Any], list[str]]]
    """What IPython asks for; set where notebooks are known."""

    def _repr_html_(self) -> str:
        """A table: what became of each rank."""
        from ._failure_table import table

        return table(self)

    @property
    def error_index(self) -> int:
        """The local rank, under the name that torch's ProcessException gives it."""
        return self.local_rank

    @property
    def error_pid(self) -> int:
        """The pid, under the name that torch's ProcessException gives it."""
        return self.pid


class ReplicaRaised(ReplicaError):
    """The user's function raised in a replica."""


class ReplicaDied(ReplicaError):
    """A replica ended without returning from the user's function."""


class ReplicaTimeout(ReplicaError, TimeoutError):
    """A launch took longer than it was allowed to."""
