"""What is to be launched, and one replica of it, as the launcher's side sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xmp._types import HostPlan, JobPlan, Limits, Output

if TYPE_CHECKING:
    from .telling import Telling

__all__ = ["Job", "ReplicaProcess"]


@dataclass(frozen=True)
class Job:
    """What is to be launched, as the engine sees it: no devices, only replicas."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    host: HostPlan
    world_size: int
    method: str = "forkserver"
    plan: JobPlan | None = None
    leases: Mapping[str, int] = field(default_factory=dict)
    grace: float = 5.0
    daemon: bool = False
    seed: int | None = None
    called: int = 0
    limits: Limits | None = None
    telling: Telling | None = None
    """Who hears of every change of state; None where nobody does."""
    restart_count: int = 0
    output: Output | None = None

    @property
    def name(self) -> str:
        """What the function is called."""
        return str(getattr(self.fn, "__qualname__", type(self.fn).__qualname__))

    @property
    def identity(self) -> tuple[str, str]:
        """To remember that a fork was not safe after it was loaded."""
        return str(getattr(self.fn, "__module__", "")), self.name


@dataclass
class ReplicaProcess:
    """One replica as the launcher knows it (not a child of the launcher)."""

    rank: int
    pid: int
    exitcode: int | None = None

    @property
    def name(self) -> str:
        """``Replica-<rank>``, as ``multiprocessing.current_process().name`` says inside."""
        return f"Replica-{self.rank}"

    def is_alive(self) -> bool:
        """Whether its end has not been reported yet."""
        return self.exitcode is None
