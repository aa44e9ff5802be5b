"""``preempted()``: the launcher got SIGTERM; it turns true at the same call in all replicas."""

from __future__ import annotations

from . import _inside

__all__ = ["note_preemption", "preempted"]

_noted = False


def preempted() -> bool:
    """Whether this launch must end soon: save a checkpoint, and return.

    Call it once a step, in the replica's main thread. After the launcher got SIGTERM it turns true
    in every replica at the same call, counted from the first, and stays true; no replica waits for
    another. Until then a call costs less than a microsecond. In the launcher it is true once that
    has happened in one of its launches; elsewhere it is false.
    """
    if not _inside.in_a_replica():
        return _noted
    channel = _inside.channel()
    return channel is not None and channel.preempted()


def note_preemption() -> None:
    """In the launcher: the replicas of a launch know that they are preempted."""
    global _noted
    _noted = True
