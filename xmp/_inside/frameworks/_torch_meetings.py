"""Where the ranks of a process group meet, with a time limit, when they are on several hosts.

They meet in the store of torch's default group. The first word written under a meeting's name holds
for all ranks: either all have come, or who has not. So no rank goes on while another gives up, and
one that comes late gets the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from xmp._words.record import have_not_come

__all__ = ["StoreMeetings"]

_MET = "met"
_SHORTEST, _LONGEST = 0.001, 0.05
"""Seconds between two looks at the store, whose own wait() writes to stderr when it ends."""


class StoreMeetings:
    """The meetings of this rank."""

    def __init__(self) -> None:
        self._stored: dict[str, list[str]] = {}
        """What this rank has stored for each group and has to delete."""

    def meet(self, store: Any, name: str, rank: int, group: Sequence[int], seconds: float) -> str:
        """Wait until all ranks of a group have called this with one name.

        Args:
            store: torch's, of the default group.
            name: "…/group/number"; a number comes once.
            rank: this one.
            group: the global ranks of the group.
            seconds: how long to wait.

        Returns:
            Who has not come in time, in words; empty: all have.
        """
        own, count, verdict = f"{name}/{rank}", f"{name}/count", f"{name}/verdict"
        store.set(own, "")
        if store.add(count, 1) == len(group):
            said = store.compare_set(verdict, "", _MET)
        else:
            said = _verdict(store, name, verdict, group, time.monotonic() + seconds)
        words = str(said.decode())
        stored = [own] if rank != group[0] else [own, count, verdict]
        earlier = self._stored.setdefault(name.rpartition("/")[0], [])
        if words == _MET:  # all ranks have left the earlier meetings of the group
            for key in earlier:
                store.delete_key(key)
            earlier.clear()
        earlier += stored
        return "" if words == _MET else words


def _verdict(store: Any, name: str, verdict: str, group: Sequence[int], end: float) -> bytes:
    """Return the verdict when it is there; write it when the time is up."""
    pause = _SHORTEST
    while not store.check([verdict]):
        left = end - time.monotonic()
        if left <= 0:
            late = [each for each in group if not store.check([f"{name}/{each}"])]
            said: bytes = store.compare_set(verdict, "", have_not_come(late) if late else _MET)
            return said
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST)
    found: bytes = store.get(verdict)
    return found
