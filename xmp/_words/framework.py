"""The protocol of the modules in ``xmp/_inside/frameworks``: what a framework offers a replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["AveragingOptions", "Framework", "Members"]


@dataclass(frozen=True)
class AveragingOptions:
    """How ``xmp.data_parallel`` averages gradients; its docstring says what each means."""

    bucket_mb: float = 25
    first_bucket_mb: float = 1
    find_unused_parameters: bool = False
    static_graph: bool = False
    comm_hook: Any = None
    """A name, torch's hook, or a pair of hook and state."""
    sync_batchnorm: bool = False
    group: Any = None
    words: tuple[str, str] = ("model.module", "xmp.data_parallel")
    """How messages name the wrapped model, and what wraps it."""


class Members(Protocol):
    """Some of the replicas, as one of them sees its process group; collectives as in Framework."""

    rank: int
    """This replica's rank in the group; -1 if it is not in the group and so has no collectives."""
    ranks: tuple[int, ...]
    """The global ranks of the group's replicas, in the order of their ranks in the group."""

    def barrier(self) -> None: ...

    def all_reduce(self, value: Any, op: str = "sum") -> Any: ...

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Return the value of rank ``src`` of the group on each of its replicas."""

    def all_gather(self, value: Any) -> Sequence[Any]: ...


class Framework(Protocol):
    """One replica's view of the mesh, as a framework's ``enter`` returns it.

    Collectives are functional: they return their result and never change their argument. Values are
    tensors, arrays, numbers or trees (dict, list, tuple) of them; ``all_reduce`` returns leaves of
    other types unchanged.

    More methods are optional:

    ``failed(error) -> int``  called when the user's function has raised; returns the exit code
    ``linger() -> None``  called in a replica that has failed, when its files are finished: waits
        until the others no longer depend on it
    ``beside(info) -> Framework``  called in the thread of each replica, where several
        share a process
    ``synchronize() -> None``  waits until the device has finished the work that it was given
    ``ordinal() -> int``  the runtime's own number of this replica, where that may not be its rank
    ``members(group) -> Members | None``  the collectives of a process group; None: it has no groups
    ``local_group() -> group | None``  the group of this host's replicas; None as above
    ``abandon(why) -> None``  makes the group of this replica unusable, so that the others fail
        which wait for it: their calls and this one's differ
    ``meet(name, seconds) -> str``  waits until all its ranks, on whatever hosts, have called it
        with this name; returns in words which have not come in time, the same on all
    ``black_box() -> bytes``  the framework's own record of its last collectives, as JSON; called
        when the user's function has raised
    ``begin_call(number) -> None``  begins a call of a gang, whose keys must differ from the last's
    ``averaging_members(group) -> Members``  the collectives that average gradients, where torch's
        DistributedDataParallel cannot do it
    """

    def device(self) -> Any:
        """Return the framework's own device object of this replica."""

    def init_process_group(self, backend: str | None = None, timeout: float | None = None) -> None:
        """Form the process group by env://; do nothing if there is one.

        Args:
            backend: the backend's name; None for the framework's default.
            timeout: seconds that a collective may take; None for the framework's default.

        Raises:
            ValueError: the framework lacks this backend, or there is a group with another one.
        """

    def barrier(self) -> None:
        """Wait until every replica has called this."""

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce ``value`` over all replicas; ``op`` is sum, mean, min, max or prod."""

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Return the value of rank ``src``, any picklable object; ``src`` gets the same object."""

    def all_gather(self, value: Any) -> Sequence[Any]:
        """Return the values of all replicas, any picklable objects, in rank order."""

    def leave(self) -> None:
        """Destroy the process group; called once, after the user's function."""
