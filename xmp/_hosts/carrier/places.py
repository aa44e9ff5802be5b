"""The indices of hosts that are told apart by their order of arrival alone."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

__all__ = ["Places"]


class Places:
    """The index of each host, from 1 up: host 0 has the coordinator. A host keeps its index."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._given: dict[Hashable, int] = {}

    def __iter__(self) -> Iterator[Hashable]:
        return iter([*self._given])

    def give(self, host: Hashable, wanted: int = -1, others: Collection[int] = ()) -> int:
        """Return the index of a host, giving it one if it has none; 0 if that is not possible.

        ``wanted`` is the index that the host had on an earlier connection: it gets that one or 0.
        Otherwise it gets the lowest free one. ``others`` are the indices of hosts that have come
        with their own.
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
        """Free the index of a host that has gone, for the next one."""
        self._given.pop(host, None)
