"""How long a program keeps hosts of a cluster between two launches: others may wait for them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

__all__ = ["IdleLimit"]


class IdleLimit:
    """Calls ``over`` after so many seconds between ``start`` and ``stop``; never in a notebook."""

    def __init__(self, over: Callable[[], object], seconds: float) -> None:
        self._over, self._seconds = over, seconds
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """The launch is over."""
        self.stop()
        if "ipykernel" not in sys.modules:  # its user thinks between two cells
            self._timer = threading.Timer(self._seconds, self._over)
            self._timer.name, self._timer.daemon = "xmp-idle", True
            self._timer.start()

    def stop(self) -> None:
        """Another launch begins, or the hosts are given back."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
