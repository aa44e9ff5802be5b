"""Hosts of the cluster that Ray still has, and that cannot be reached.

Ray counts a host as alive for 64 s after its network is cut (2.60), and would place the next
attempt there. So after a loss each host is tried, and those that do not answer are left out, for as
long as they do not.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Sequence

from xmp._os.names import looked_up

from .cluster import ClusterHost

__all__ = ["SilentHosts", "answering"]

_PATIENCE = 1.5
"""Seconds for all hosts together: each is asked at the same time."""
_NODE_ID = "ray.io/node-id"


class SilentHosts:
    """The hosts that are left out, as they did not answer after a loss."""

    def __init__(self) -> None:
        self._lost_one = False
        self.silent: frozenset[str] = frozenset()
        """The node ids of hosts that did not answer when they were tried."""

    def lost(self) -> None:
        """Note that a host of this process was lost: another one may fail in the same way."""
        self._lost_one = True

    def look(self, hosts: Sequence[ClusterHost]) -> bool:
        """Try the hosts; return whether others are silent than before."""
        before = self.silent
        if self._lost_one:
            there = answering([(host.address, host.port) for host in hosts])
            self.silent = frozenset(h.node_id for h in hosts if (h.address, h.port) not in there)
        return self.silent != before

    def selector(self) -> dict[str, str]:
        """Return what each bundle of a placement group asks of its host's labels."""
        if not self.silent:
            return {}
        return {_NODE_ID: f"!in({','.join(sorted(self.silent))})"}


def answering(addresses: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return those at which something listens, of many at once."""
    found: set[tuple[str, int]] = set()
    with contextlib.ExitStack() as stack:
        poller, waiting = select.poll(), dict[int, tuple[socket.socket, tuple[str, int]]]()
        for address in addresses:
            with contextlib.suppress(OSError):  # as of a name that is not known: it is not there
                dialled = stack.enter_context(_dialled(address))
                poller.register(dialled, select.POLLOUT)
                waiting[dialled.fileno()] = dialled, address
        end = time.monotonic() + _PATIENCE
        while waiting and (left := end - time.monotonic()) > 0:
            for descriptor, _ in poller.poll(left * 1000):
                dialled, address = waiting.pop(descriptor)
                poller.unregister(descriptor)
                if not dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    found.add(address)
    return found


def _dialled(address: tuple[str, int]) -> socket.socket:
    family, _, _, _, resolved = looked_up(*address, socket.SOCK_STREAM, _PATIENCE)[0]
    dialled = socket.socket(family, socket.SOCK_STREAM)
    dialled.setblocking(False)
    dialled.connect_ex(resolved)
    return dialled
