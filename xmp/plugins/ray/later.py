"""What is done some time after a launch, unless another one begins before: hosts are given back."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Later"]


class Later:
    """Calls ``over`` so many seconds after ``start``, unless ``stop`` comes first.

    After ``stop`` it is not called any more: it has returned, or never begins.
    """

    def __init__(self, over: Callable[[], object], seconds: float) -> None:
        self._over, self._seconds = over, seconds
        self._lock = threading.RLock()  # ``over`` may itself call ``stop``
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Count from now on."""
        with self._lock:
            self.stop()
            self._timer = threading.Timer(self._seconds, self._call)
            self._timer.name, self._timer.daemon = "xmp-later", True
            self._timer.start()

    def stop(self) -> None:
        """Another launch begins, or there is nothing to give back."""
        with self._lock:
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()

    def _call(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._over()
