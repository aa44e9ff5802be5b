"""Gives the replicas of a gang to one caller at a time; submitted calls run in their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

__all__ = ["Turns"]


class _Submitted(Future[Any]):
    """The future of a submitted call; Ctrl-C while its result is waited for ends the call."""

    def __init__(self, run: Callable[[], Any], end: Callable[[], None]) -> None:
        super().__init__()
        self.run = run
        self._end = end

    def result(self, timeout: float | None = None) -> Any:
        try:
            return super().result(timeout)
        except KeyboardInterrupt:
            if self.running():
                self._end()
            raise


class Turns:
    """The turns of one gang."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Held while a call begins, or the gang is closed."""
        self._caller = 0
        """The thread that calls, or waits for submitted calls to end."""
        self._called = False
        """True: the replicas are that thread's, and what is submitted waits."""
        self._waiting: deque[_Submitted] = deque()
        """The submitted calls that have not begun."""
        self._works = False
        """True: a thread runs the submitted calls."""

    @contextmanager
    def own(self) -> Iterator[None]:
        """Have the turn within the block, after what was submitted.

        Raises RuntimeError if another call of ``own`` is not over.
        """
        with self.changed:
            if self._caller:
                own = self._caller == threading.get_ident()
                where = "this thread, of which this one is a part" if own else "another thread"
                raise RuntimeError(
                    f"the gang runs a call of {where}, and its replicas run one at a time. Use "
                    "submit() for calls that wait for their turn"
                )
            self._caller = threading.get_ident()
        try:
            with self.changed:
                self.changed.wait_for(lambda: not self._works)
                self._called = True
            yield
        finally:
            with self.changed:
                self._caller, self._called = 0, False
                self.changed.notify_all()

    def submit(self, run: Callable[[], Any], end: Callable[[], None]) -> Future[Any]:
        """Have ``run`` called in a thread when its turn comes; ``end`` ends it on Ctrl-C."""
        future = _Submitted(run, end)
        with self.changed:
            self._waiting.append(future)
            if not self._works:
                self._works = True
                # Not an executor's, which Python waits for at its end, before exit handlers.
                threading.Thread(target=self._work, name="xmp-gang", daemon=True).start()
        return future

    def cancel(self) -> None:
        """Cancel what has not begun."""
        with self.changed:
            for future in self._waiting:
                future.cancel()
            self._waiting.clear()

    def _work(self) -> None:
        """Run what was submitted, in its order, in a thread of its own."""
        while (future := self._next()) is not None:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(future.run())
            except BaseException as error:
                future.set_exception(error)

    def _next(self) -> _Submitted | None:
        with self.changed:
            self.changed.wait_for(lambda: not self._called or not self._waiting)
            if self._waiting:
                return self._waiting.popleft()
            self._works = False
            self.changed.notify_all()
            return None
