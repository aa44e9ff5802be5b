"""The end of the store that connects torch's replicas: its host is the last one that leaves."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta

import xmp
from tests.support.waiting import until


def of_two_hosts(rank: int) -> int:
    """How many peers have gone when the host of the store leaves, in a process of their own."""
    from xmp._inside.frameworks import _torch_rendezvous

    _torch_rendezvous._FORMING = 1.0
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    host, peer = (_torch_rendezvous.Rendezvous("127.0.0.1", port) for _ in range(2))
    host.take(listener.detach())
    for each in (host, peer):
        each.join(2, timedelta(seconds=30))
    host._last -= 2
    waiting = threading.Thread(target=peer._wait_for_peers)
    waiting.start()
    until(lambda: bool(host._client.add("left", 0)), 10)
    host._wait_for_peers()
    gone = int(host._client.add("gone", 0))
    waiting.join()
    return gone


def test_a_host_that_joined_early_outstays_who_still_waits() -> None:
    """On another host the time in which peers may still be connecting can begin, and end, later."""
    assert xmp.spawn(of_two_hosts, nprocs=1, start_method="forkserver", runtime="cpu")[0] == 1
