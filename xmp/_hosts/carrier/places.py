"""The indices of hosts that nothing but their arrival tells apart."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

__all__ = ["Places"]


class Places:
    """Which host has which index, from 1 up: host 0 has the coordinator. A host keeps its own."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._given: dict[Hashable, int] = {}

    def __iter__(self) -> Iterator[Hashable]:
        return iter([*self._given])

    def give(self, host: Hashable, wanted: int = -1, others: Collection[int] = ()) -> int:
        """The index of a host; 0 where none is left, or not the one that it had and has ``wanted``.

        ``others`` are the indices of hosts that have come with their own.
        """
        if host not in self._given:
            used = {0, *others, *self._given.values()}
            possible = (wanted,) if wanted > 0 else range(1, self._hosts)
            free = (index for index in possible if index not in used and index < self._hosts)
            index = next(free, 0)
            if not index:
                return 0
            self._given[host] = index
        return self._given[host]

    def left(self, host: Hashable) -> None:
        """The host has gone: the next one may have its index."""
        self._given.pop(host, None)
