"""What a replica at a breakpoint and its supervisor send each other, on a connection for that.

``AnswerDebugger`` and ``DebuggerLeft`` (``messages.launch``) go through it too: the supervisor
passes them on between launcher and replica.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Synced", "Synchronise"]


class Synchronise(NamedTuple):
    """Before a prompt: pass on what the replica has written so far; ``Synced`` answers."""


class Synced(NamedTuple):
    """Everything has been passed on."""
