"""The kinds of frames between hosts: one byte each.

Unless "Back" or "Both ways" says otherwise, a frame goes from a host to the coordinator; "Back" is
from the coordinator to the hosts. A launcher and its carrier process use the same kinds.
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
"""Back: the state of the roll call, a ``RollState``; when no host is missing, the launch begins."""
REFUSED = ord("X")
"""Back: a ``Refusal``: the launch cannot start."""
FAILED = ord("F")
"""A ``HostFailure``: the launch has failed on this host."""
VERDICT = ord("V")
"""Back: the ``HostFailure`` with which the launch has failed."""
PROGRESS = ord("P")
"""Both ways: a replica has made progress (``hang_timeout``)."""
PREEMPTED = ord("T")
"""Both ways: a host is about to be taken away (``xmp.preempted``)."""
STEP = ord("S")
"""A ``Step``: how far the replicas of this host are."""
PROPOSED = ord("Q")
"""Back: a ``Proposal``: at which call of ``preempted()`` all may end."""
DONE = ord("D")
"""Both ways: all replicas of this host (back: of all hosts) have ended well."""
PLACE = ord("N")
"""Both ways: a host that does not know its index asks for an ``ArrivalIndex`` before it sends its
card, and gets one back."""
LEAVE = ord("G")
"""This host needs the others no longer."""

PREEMPTION = PREEMPTED, PROPOSED
"""The kinds that a host hears of the vote on ``preempted()``."""
