"""The main program of a carrier process, which runs beside the launcher of each host."""

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

    ``listener`` is the listening socket of the coordinator; -1 in a member. The rest comes on
    standard input: the secret must not stand among the arguments, which every user of the host can
    read. The launcher keeps standard input open as long as it lives; when it closes, the kernel
    continues this process if it is stopped.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what a Ctrl-C ends
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("xmp-carrier")  # for ps; the function that sets names elsewhere loads ctypes
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
    os._exit(0)  # the launcher waits for this, and finalising an interpreter costs 30 ms
