"""What an actor does while its driver is silent: it finds out whether that is cut off, or stopped.

A driver that a debugger, Ctrl-Z or SIGSTOP has stopped goes on later, and so must its job. One
whose network is cut does not come back in time: it has given this host up by then, and the replicas
must end here too. The kernel of the driver's host accepts connections to Ray's own port there
whether the driver is stopped or not, so one connection shows which it is. Ray itself waits for 64 s
(2.60).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from xmp._os.names import connected

__all__ = ["DriverWatch", "reaches"]

_TICK = 1.0
_SILENCE = 6
"""Ticks without a request after which the driver's host is tried. Ticks, not seconds: this process
may itself have been stopped meanwhile."""
_TRIES = 2
_PATIENCE = 1.5
"""Seconds for one connection: two in vain, after the silence, are less than 15 s."""


class DriverWatch:
    """Counts the time since the driver's last request; ``cut`` is called once, if it cannot come.

    Requests have numbers. Between launches there are none, and the driver says so: ``rested``.
    """

    def __init__(self, address: tuple[str, int], cut: Callable[[], object]) -> None:
        """``address``: a host and a port on which Ray listens there."""
        self._address, self._cut = address, cut
        self._changed = threading.Condition()
        self._open = 0
        """Requests that this host has not answered yet."""
        self._last = self._rested = 0
        """Numbers of requests."""
        self._ticks = 0
        threading.Thread(target=self._watch, name="xmp-silence", daemon=True).start()

    def begins(self, number: int) -> None:
        """The driver asks."""
        with self._changed:
            self._open += 1
            self._last = max(self._last, number)
            self._ticks = 0
            self._changed.notify_all()

    def ends(self) -> None:
        """It has its answer, and asks again soon."""
        with self._changed:
            self._open -= 1
            self._ticks = 0

    def rested(self, number: int) -> None:
        """The driver asks no more after this request, until the next launch."""
        with self._changed:
            self._rested = max(self._rested, number)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._last > self._rested)
            time.sleep(_TICK)
            with self._changed:
                waits = not self._open and self._last > self._rested
                self._ticks = self._ticks + 1 if waits else 0
            if self._ticks < _SILENCE:
                continue
            if not self._answers():
                self._cut()
                return
            self._ticks = 0

    def _answers(self) -> bool:
        """Whether the driver's host can be reached, or the driver has been heard meanwhile."""
        return any(self._is_there() for _ in range(_TRIES))

    def _is_there(self) -> bool:
        return reaches(self._address, _PATIENCE) or not self._ticks


def reaches(address: tuple[str, int], seconds: float) -> bool:
    """Whether a host takes up a connection, or refuses it: then its kernel has answered."""
    try:
        connected(*address, seconds).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
