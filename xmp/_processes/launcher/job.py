"""What is to be launched, and one replica of it, as the launcher's side sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xmp._types import HostPlan, JobPlan, Limits, Output

if TYPE_CHECKING:
    from .telling import Telling

__all__ = ["Job", "ReplicaProcess", "Silence"]


class Silence:
    """What is done with the events of a launch where nobody wants to hear them."""

    def begin(self, called: int, plan: JobPlan | None, restart: int = 0) -> None:
        """It has been planned."""

    def tell(self, events: Iterable[tuple[Any, ...]]) -> None:
        """The supervisor tells these."""

    def end(self, error: BaseException | None) -> None:
        """It is over, with this error or well."""

    def drop(self) -> None:
        """In a forked child of the launcher: it is not ours."""


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
    progress: bool | None = False
    """Whether the start is shown; None: on a terminal, if it takes long."""

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
