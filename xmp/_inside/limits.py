"""``timeout=`` of collectives: all ranks of the call meet before data moves, or all raise.

A collective cannot be left once its data moves: XLA has no way to do it, and in gloo the one that
gives up blocks until the others have come (torch 2.13: ``_abort_process_group`` joins the thread
that waits). So the limit holds for the arrival of the others. What they have called is still whole
afterwards, and the next collective works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .identity import ReplicaState

__all__ = ["Limit", "meeting_of"]


def meeting_of(state: ReplicaState, group: int, number: int) -> str:
    """Return the name under which the ranks of a collective meet."""
    return f"{state.call.number}/{group}/{number}"


class Limit:
    """The time limit of one call."""

    def __init__(self, state: ReplicaState, scope: Any, seconds: float) -> None:
        """Prepare one call.

        Args:
            state: this replica's.
            scope: the framework, or its view of the group.
            seconds: how long to wait for the others.
        """
        self._state, self._scope, self._seconds = state, scope, seconds

    def meet(self, operation: str, ranks: Sequence[int], group: int, number: int = 0) -> None:
        """Wait until all ranks of the group have come.

        Args:
            operation: the collective's name.
            ranks: the group's global ranks; empty: all.
            group: the group's number.
            number: that of the call in its group; 0: it has no record.

        Raises:
            TimeoutError: some have not come. All others of the group raise it too.
        """
        absent = self._absent(self._key(group, number), ranks)
        if absent:
            raise TimeoutError(f"xmp.{operation}(timeout={self._seconds:g}): {absent}")

    def _key(self, group: int, number: int) -> str:
        if number:
            return meeting_of(self._state, group, number)
        call = self._state.call
        call.meetings[group] += 1
        return f"apart/{call.number}/{group}/{call.meetings[group]}"

    def _absent(self, key: str, ranks: Sequence[int]) -> str:
        """Return in words who has not come."""
        info, channel = self._state.info, self._state.channel
        first = info.rank - info.local_rank
        local = range(first, first + info.local_world_size)
        ranks = ranks or range(info.world_size)
        if channel is not None and all(rank in local for rank in ranks):
            return channel.meet(key, [rank - first for rank in ranks], self._seconds)
        meet = getattr(self._scope, "meet", None)
        if meet is None:
            raise RuntimeError(
                f"timeout= needs a framework that can wait for other hosts, and runtime "
                f"{info.runtime!r} has none. Leave timeout= out, or give the group of one host "
                "(xmp.local_group())"
            )
        return str(meet(f"xmp/meet/{key}", self._seconds))
