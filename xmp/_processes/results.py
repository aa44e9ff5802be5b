"""What a launch gives back: values in rank order, and when each replica got where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar, overload

from .account import StartAccount

__all__ = ["Results"]

R = TypeVar("R")


class Results(Sequence[R], Generic[R]):
    """The return values of this host's replicas, in rank order.

    ``by_rank`` maps global ranks to values; ``timeline`` maps them to the account of their start.
    """

    def __init__(self, by_rank: Mapping[int, R], timeline: StartAccount) -> None:
        self.by_rank: dict[int, R] = dict(sorted(by_rank.items()))
        self.timeline = timeline
        self._values = list(self.by_rank.values())

    @overload
    def __getitem__(self, index: int) -> R: ...

    @overload
    def __getitem__(self, index: slice) -> list[R]: ...

    def __getitem__(self, index: int | slice) -> R | list[R]:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[R]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Results):
            return self._values == other._values
        return self._values == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Results({self._values!r})"
