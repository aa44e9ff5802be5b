"""Where each replica of this host is: its record, and what the kernel says of its process."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from xmp._processes.system.doing import doing
from xmp._processes.system.records import Records
from xmp._words.record import ENDED, RETURNED, RankPlace

from .replica_handle import ReplicaHandle

__all__ = ["places"]


def places(
    replicas: Iterable[ReplicaHandle], records: Records, watch: bool, working: Collection[int]
) -> list[RankPlace]:
    """Return the place of each rank, without its stack.

    Args:
        replicas: all of this host.
        records: theirs.
        watch: look for a tenth of a second which of them use a processor.
        working: the ranks that have done something of late.
    """
    replicas = list(replicas)
    known = doing([each.pid for each in replicas if not each.ended], watch)
    return [
        RankPlace(
            rank=rank,
            record=records.read(local_rank),
            at=time.monotonic_ns(),
            doing=known.get(replica.pid, ""),
            works=rank in working,
            ended=_end(replica),
        )
        for replica in replicas
        for rank, local_rank in zip(replica.ranks, replica.local_ranks, strict=True)
    ]


def _end(replica: ReplicaHandle) -> str:
    """Return how the function of a replica, or its process, has ended; "" if it runs."""
    if replica.returned:
        return RETURNED
    return ENDED if replica.ended else ""
