"""Answers of Ray, which threads of xmp await without being inside Ray.

``ray.shutdown`` frees what a thread in ``ray.get`` uses, and the process ends by SIGSEGV (Ray 2.60,
``shutdown`` in _private/worker.py). A future is completed by a thread of Ray's own, and by none
after ``ray.shutdown``.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

__all__ = ["Connected", "DisconnectedError", "all_came"]


class DisconnectedError(Exception):
    """The program has called ``ray.shutdown``."""

    def __init__(self) -> None:
        super().__init__("the program has called ray.shutdown()")


class Connected:
    """This process's connection to Ray, as it is now: another ``ray.init`` makes another one."""

    def __init__(self) -> None:
        import ray

        self._worker = ray._private.worker.global_worker
        self._core = self._worker.core_worker

    @property
    def lives(self) -> bool:
        """Whether Ray may be called, and answers to what it was asked before."""
        return self._worker.connected and getattr(self._worker, "core_worker", None) is self._core

    def check(self) -> None:
        """Raise DisconnectedError where it does not live."""
        if not self.lives:
            raise DisconnectedError


def all_came(asked: Sequence[Future[Any]], seconds: float) -> bool:
    """Wait for so many answers, or errors in place of them; return whether all have come."""
    return not concurrent.futures.wait(asked, seconds).not_done
