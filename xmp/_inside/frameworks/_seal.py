"""Authentication codes for what replicas send each other through stores that strangers can reach.

torch's store and JAX's coordinator take what any program writes, and so do the connections that are
made through them: to unpickle what comes from there is to run what a stranger chose. The code is
keyed BLAKE2b over the group, the collective, its round in the group, the sender's rank and the
body, under a key that only the replicas of this attempt have.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import weakref
from typing import Any

from xmp._inside import launch_key

__all__ = ["CODE_SIZE", "Round", "Seal", "seal_of"]

CODE_SIZE = 16


class Seal:
    """The codes of one group of replicas. Every member makes the same collectives in one order."""

    def __init__(self, key: bytes, group: str) -> None:
        """Make codes under ``key``; without one there are none, and nothing may be unpickled."""
        self.key = key
        self._group = group
        self._rounds = 0

    def next(self, operation: str) -> Round:
        """Return the codes of the next collective."""
        self._rounds += 1
        return Round(self.key, self._group, operation, self._rounds)


class Round:
    """The codes of one collective of one group."""

    def __init__(self, key: bytes, group: str, operation: str, number: int) -> None:
        self._key, self._operation = key, operation
        self._begun = hashlib.blake2b(digest_size=CODE_SIZE, key=key, person=b"xmp replicas")
        self._begun.update(repr((group, operation, number)).encode() + b"\0")  # it escapes a NUL

    def closed(self, rank: int, body: bytes) -> bytes:
        """Return the body of this rank's message, behind its code."""
        return self._code(rank, body) + body if self._key else body

    def opened(self, rank: int, message: bytes) -> bytes:
        """Return a message's body; raise RuntimeError unless this rank sent it in this round."""
        if not self._key:
            return message
        code, body = message[:CODE_SIZE], message[CODE_SIZE:]
        if hmac.compare_digest(code, self._code(rank, body)):
            return body
        raise RuntimeError(
            f"xmp.{self._operation}(): the message of rank {rank} is not what that replica has "
            "sent, and was not opened: another program writes to the store or the connections of "
            "this launch (docs/guide/security.md), or the replicas make different collectives"
        )

    def _code(self, rank: int, body: bytes) -> bytes:
        code = self._begun.copy()
        code.update(rank.to_bytes(8, "little"))
        code.update(body)
        return code.digest()


_seals: weakref.WeakKeyDictionary[Any, Seal] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def seal_of(group: Any) -> Seal:
    """Return the seal of a process group of torch's; it counts rounds while the group lives."""
    with _lock:
        if group not in _seals:
            _seals[group] = Seal(launch_key(), f"group {group.group_name}")
        return _seals[group]
