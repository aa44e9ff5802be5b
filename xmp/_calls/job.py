"""The handle of a launch over hosts: a ``ProcessContext`` whose replicas are on several hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from xmp._processes import ProcessContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xmp._words.types import JobPlan

__all__ = ["Job", "JobHost"]

R = TypeVar("R")


@dataclass(frozen=True)
class JobHost:
    """One host of a job."""

    index: int
    name: str
    """As errors and prefixes have it."""
    address: str
    pid: int
    """Of its agent, the launcher there."""


class _Attempt(Protocol):
    """The launch over hosts, or its present attempt."""

    @property
    def agents(self) -> Sequence[Any]: ...
    def plan(self) -> JobPlan: ...


class Job(ProcessContext[R]):
    """The handle of a launch over several hosts, from ``xmp.launch(…, hosts=…, join=False)``.

    What it shares with ``ProcessContext`` means the same, for the replicas of all hosts: ``join``,
    ``results``, ``stacks``, ``terminate``, ``pids``, ``plan``. As a context manager it ends the
    replicas that still run at the end of the block.
    """

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}; on {len(self.hosts)} hosts>".replace(
            "ProcessContext", "Job", 1
        )

    @property
    def _attempt(self) -> _Attempt:
        return cast("_Attempt", self._launch.attempt)

    @property
    def plan(self) -> JobPlan:
        return self._attempt.plan()

    @property
    def hosts(self) -> list[JobHost]:
        """The hosts in the order of their indices; after a restart, those of the last attempt."""
        agents = self._attempt.agents
        return [JobHost(agent.index, agent.name, agent.address, agent.pid) for agent in agents]
