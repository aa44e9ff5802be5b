"""``preempted()``: true once the launcher got SIGTERM, from the same call on in all replicas."""

from __future__ import annotations

from xmp import _inside

__all__ = ["note_preemption", "preempted"]

_noted = False


def preempted() -> bool:
    """Return whether this launch must end soon; if so, save a checkpoint and return.

    Call it once a step, in the replica's main thread. After the launcher got SIGTERM it turns true
    in every replica at the same call, counted from the first, and stays true; no replica waits for
    another. Until then a call costs less than a microsecond. In other threads of a replica and in
    its children (workers of a data loader) calls do not count, and return what the replica's own
    latest call has returned. In the launcher it is true once that has happened in one of its
    launches; elsewhere it is false.
    """
    state = _inside.installed()
    if state is None or state.channel is None:
        return _noted
    return state.channel.preempted(state.is_own())


def note_preemption() -> None:
    """Note, in the launcher, that the replicas of a launch know that they are preempted."""
    global _noted
    _noted = True
