"""Waits until a service of rank 0 listens, for clients that are slow to retry."""

from __future__ import annotations

import time

from xmp._os import signals
from xmp._os.names import connected

__all__ = ["wait_for_listener"]


def wait_for_listener(address: str, seconds: float = 300.0) -> None:
    """Return when ``host:port`` listens, or after ``seconds``: then the client's time-out applies.

    gRPC retries a refused connection after 1 s, Paddle after 3 s.
    """
    host, _, port = address.rpartition(":")
    deadline, pause = time.monotonic() + seconds, 0.001
    while time.monotonic() < deadline:
        with signals.deferred():  # an error that a handler raises is no refused connection
            try:
                connected(host.strip("[]"), int(port), pause + 1).close()
                return
            except OSError as error:
                if signals.from_handler(error):
                    raise
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
