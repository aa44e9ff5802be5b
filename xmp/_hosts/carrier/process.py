"""A carrier process: what runs beside the launcher of each host of a launch over several hosts.

It is a fresh interpreter of its own, since a thread of the launcher's would forbid
``start_method="fork"``, and since it has to go on when the launcher is stopped or busy.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

from .coordinator import Coordinator
from .member import Member
from .peer import Peer
from .sealed import Frames, Keys

__all__ = ["main"]


def main(channel: int, listener: int, launcher: int) -> None:
    """Serve the launcher with this pid, over the socket ``channel``, until it leaves or ends.

    ``listener`` is the listening socket of the coordinator; -1 in a member. Standard input has the
    rest: the secret must not stand among the arguments, which every user of the host can read. It
    stays open as long as the launcher lives: its end continues this process, if it is stopped.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what a Ctrl-C ends
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("xmp-carrier")  # for ps; what sets a name elsewhere in xmp loads ctypes
    orders = json.loads(sys.stdin.readline())
    peer = Peer(socket.socket(fileno=channel), Frames(), remote=False)
    keys = Keys(orders["job"], bytes.fromhex(orders["secret"]))

    def is_orphan() -> bool:
        return os.getppid() != launcher

    if listener >= 0:
        served = socket.socket(fileno=listener)
        job = orders["hosts"], orders["start_timeout"], is_orphan, orders["names"]
        Coordinator(served, peer, keys, *job).run()
    else:
        address = orders["address"], orders["port"]
        Member(peer, is_orphan, address, keys, orders["start_timeout"]).run()
    os._exit(0)  # the launcher waits for it, and to take an interpreter down costs 30 ms
