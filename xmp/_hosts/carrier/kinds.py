"""The kinds of frames between hosts: one byte each.

From a host to the coordinator, and back. A launcher and its carrier process use the same ones.
"""

from __future__ import annotations

__all__ = [
    "BEAT", "CALL", "CARD", "DONE", "FAILED", "LEAVE", "PLACE", "PREEMPTED", "PREEMPTION",
    "PROGRESS", "PROPOSED", "REFUSED", "STEP", "VERDICT",
]  # fmt: skip

BEAT = ord("B")
"""Both ways: this end lives. A host sends one a second."""
CARD = ord("C")
"""A ``HostCard``: this host has come to the roll call."""
CALL = ord("R")
"""Back: the state of the roll call, a ``Call``; without missing hosts the launch begins."""
REFUSED = ord("X")
"""Back: the launch cannot start, a ``Refusal``."""
FAILED = ord("F")
"""The launch has failed on this host, a ``HostFailure``."""
VERDICT = ord("V")
"""Back: the launch has failed, and with which ``HostFailure``."""
PROGRESS = ord("P")
"""Both ways: a replica has made progress (``hang_timeout``)."""
PREEMPTED = ord("T")
"""Both ways: a host is about to be taken away (``xmp.preempted``)."""
STEP = ord("S")
"""How far the replicas of this host are, a ``Step``."""
PROPOSED = ord("Q")
"""Back: at which call of ``preempted()`` all may end, a ``Proposal``."""
DONE = ord("D")
"""Both ways: all replicas of this host have ended well; back: those of all hosts."""
PLACE = ord("N")
"""Both ways, before the card of a host that does not know its index: it asks for a ``Place``; back:
the one that it has."""
LEAVE = ord("G")
"""This host needs the others no longer."""

PREEMPTION = PREEMPTED, PROPOSED
"""What a host hears of the vote on ``preempted()``."""
