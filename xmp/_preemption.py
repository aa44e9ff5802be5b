"""``preempted()``: the scheduler wants the machine back; all replicas hear it at the same call."""

from __future__ import annotations

from . import _inside

__all__ = ["note_preemption", "preempted"]

_noted = False


def preempted() -> bool:
    """Whether this launch is to end soon: save what you have, and return.

    Call it once a step, in the replica's main thread. After a SIGTERM of the launcher it turns
    true in every replica at the same call, counted from the first, and stays so; nobody waits for
    anybody. As long as there was none it costs less than a microsecond. In the launcher it tells
    whether that has happened in one of its launches; elsewhere it is false.
    """
    if not _inside.in_a_replica():
        return _noted
    channel = _inside.channel()
    return channel is not None and channel.preempted()


def note_preemption() -> None:
    """In the launcher: the replicas of a launch have been told."""
    global _noted
    _noted = True
