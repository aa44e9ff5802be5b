"""The coordinator's door: connections that are not yet a host of the job.

A stranger can keep no host out and take hardly any memory: a limited number of connections may
wait, each for a few seconds, and when one more comes, the oldest is closed. A real host that is
closed this way comes back by itself, since a member tries again until ``start_timeout``.
"""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Callable

from xmp._os import proc

from .peer import OtherSecret, Peer, Stranger
from .sealed import Keys
from .words import Malformed

__all__ = ["Door", "room_for"]

HANDSHAKE = 5.0
"""Seconds for a handshake."""
CARD = 30.0
"""Seconds from the handshake to the host's card, which its launcher sends at once."""
WAITING = 512
"""Connections that may wait in a small job; in a larger job, as many as there are hosts."""
BACKLOG = 4096
"""Connections that the kernel queues; it takes net.core.somaxconn where that is less."""
AT_ONCE = 64
"""Connections taken in one turn of the loop, so that hosts are heard in between."""
OWN_FILES = 32
"""Descriptors of this process that are not connections."""


def room_for(hosts: int) -> int:
    """Raise this process's limit on open files (Linux begins with 1,024) as far as it may.

    Return how many connections may wait beside those of all hosts. Less than 1 means that this
    host's limit is too low for the job.
    """
    wanted = hosts + max(WAITING, hosts) + OWN_FILES
    soft, hard = proc.limit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    free = wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
    return free - hosts - OWN_FILES


class Door:
    """The listener and the connections behind it that are not a host yet.

    ``admit`` is called with the peer of a host that has proved itself and has sent nothing yet.
    """

    def __init__(
        self,
        listener: socket.socket,
        keys: Keys,
        room: int,
        selector: selectors.BaseSelector,
        admit: Callable[[Peer], None],
    ) -> None:
        self._listener, self._keys, self._room = listener, keys, max(room, 1)
        self._selector, self._admit = selector, admit
        self._waiting: dict[Stranger | Peer, float] = {}
        """Connections that are not a host yet, oldest first, and until when each may stay."""
        self.other_secret = False
        """Whether a connection has named the job without knowing its secret."""
        self._open = False
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._listen(True)

    def _listen(self, wanted: bool) -> None:
        if wanted and not self._open:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        elif self._open and not wanted:
            self._selector.unregister(self._listener)
        self._open = wanted

    def look(self, now: float) -> None:
        """Close connections that have waited too long; accept again after a pause."""
        for waiting in [each for each, end in self._waiting.items() if now >= end]:
            self._send_away(waiting)
        self._listen(True)

    def came(self, peer: Peer) -> None:
        """Stop the time limit of a peer that has proved to be a host of the job."""
        self._waiting.pop(peer, None)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                self._listen(False)  # no descriptor is free: the listener would stay readable
                return
            self._greet(connection)

    def _greet(self, connection: socket.socket) -> None:
        if len(self._waiting) >= self._room:
            self._send_away(next(iter(self._waiting)))
        try:
            stranger = Stranger(connection, self._keys)
        except OSError:
            connection.close()
            return
        self._waiting[stranger] = time.monotonic() + HANDSHAKE
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._meet(stranger))

    def _meet(self, stranger: Stranger) -> None:
        """Go on with a handshake."""
        if stranger not in self._waiting:
            return  # sent away by an event of the same turn
        try:
            frames = stranger.read()
        except (Malformed, OSError) as error:
            if isinstance(error, OtherSecret):
                self.other_secret = True
            self._send_away(stranger)
            return
        if frames is not None:
            del self._waiting[stranger]
            self._selector.unregister(stranger.socket)
            peer = Peer(stranger.socket, frames, remote=True)
            self._waiting[peer] = time.monotonic() + CARD
            self._admit(peer)

    def _send_away(self, waiting: Stranger | Peer) -> None:
        del self._waiting[waiting]
        self._selector.unregister(waiting.socket)
        waiting.close()
