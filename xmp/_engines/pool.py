"""Groups of hosts that wait for the next launch of this process."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

__all__ = ["Pool", "new_job"]


class Kept(Protocol):
    """A group, as the pool needs it."""

    @property
    def usable(self) -> bool:
        """Whether all its agents wait for the next launch."""

    def begin(self) -> None:
        """Another launch takes it."""

    def close(self) -> None: ...

    def drop(self) -> None: ...


G = TypeVar("G", bound=Kept)


def new_job() -> dict[str, str]:
    """The variables that name a group's job, and its secret, which its hosts alone know."""
    return {"XMP_JOB_ID": secrets.token_hex(8), "XMP_JOB_SECRET": secrets.token_hex(32)}


class Pool(Generic[G]):
    """At most one group waits: the one of the latest launch, for one that asks for the same."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler of the program may itself launch
        self._waiting: tuple[Hashable, G] | None = None
        self._taken: dict[int, Hashable] = {}
        """What the groups that run were asked for, by ``id``."""
        self._ending = False
        # A child of the program has none of them: only its parent may end them.
        os.register_at_fork(after_in_child=self._forget_all)
        atexit.register(self.end)

    def taken(self, key: Hashable, make: Callable[[], G]) -> G:
        """The group that waits, if it fits, or a new one; one that does not fit is closed first."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
            if waiting is not None and waiting[0] == key and waiting[1].usable:
                group = waiting[1]
                group.begin()
            else:
                if waiting is not None:
                    waiting[1].close()
                group = make()
            self._taken[id(group)] = key
            return group

    def give_back(self, group: G, usable: bool) -> None:
        """Its launch is over: it waits for the next one, if it can."""
        with self._lock:
            key = self._taken.pop(id(group), None)
            if not usable or key is None or self._ending or not group.usable:
                group.close()
                return
            before, self._waiting = self._waiting, (key, group)
        if before is not None:
            before[1].close()

    def forget(self, group: G) -> None:
        """It is closed."""
        with self._lock:
            self._taken.pop(id(group), None)
            if self._waiting is not None and self._waiting[1] is group:
                self._waiting = None

    def expire(self, group: G) -> None:
        """End it, if it still waits."""
        with self._lock:
            waits = self._waiting is not None and self._waiting[1] is group
        if waits:
            self.close()

    def close(self) -> None:
        """End the group that waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting[1].close()

    def end(self) -> None:
        """This process ends: keep nothing any more."""
        self._ending = True
        self.close()

    def _forget_all(self) -> None:
        self._lock = threading.RLock()
        if self._waiting is not None:
            self._waiting[1].drop()
        self._waiting = None
        self._taken.clear()
