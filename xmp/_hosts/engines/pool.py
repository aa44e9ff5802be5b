"""Groups of hosts that wait for the next launch of this process."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from xmp._processes.launcher.template_pool import switched_off

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
    """Return the variables that name a group's job, and its secret, which its hosts alone know."""
    return {"XMP_JOB_ID": secrets.token_hex(8), "XMP_JOB_SECRET": secrets.token_hex(32)}


class Pool(Generic[G]):
    """At most one group waits: the one of the latest launch, for one that asks for the same."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler of the program may itself launch
        self._waiting: tuple[Hashable, G] | None = None
        self._taken: dict[int, tuple[Hashable, G]] = {}
        """The groups that run, by ``id``, and what they were asked for."""
        self._ending = False
        # A child of the program has none of them: only its parent may end them.
        os.register_at_fork(after_in_child=self._forget_all)
        atexit.register(self.end)

    def taken(self, key: Hashable, make: Callable[[], G]) -> G:
        """Return the group that waits, if it fits, or a new one; close one that does not fit."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                self._taken[id(waiting[1])] = waiting
        # Outside the lock: to ask a group, or to end it, may take seconds.
        if waiting is not None:
            group = waiting[1]
            try:
                if waiting[0] == key and group.usable:
                    group.begin()
                    return group
            except BaseException:
                group.close()
                raise
            group.close()
        group = make()
        with self._lock:
            self._taken[id(group)] = key, group
        return group

    def begins(self, key: Hashable, group: G) -> None:
        """Know a group whose making takes seconds: a fork meanwhile must drop it, too."""
        with self._lock:
            self._taken[id(group)] = key, group

    def give_back(self, group: G, usable: bool) -> None:
        """Keep the group, whose launch is over, for the next one, if it can be used."""
        usable = usable and not switched_off() and group.usable
        with self._lock:
            found = self._taken.pop(id(group), None)
            leaves: G | None = group
            if usable and found is not None and not self._ending:
                leaves = self._waiting[1] if self._waiting is not None else None
                self._waiting = found
        if leaves is not None:
            leaves.close()

    def forget(self, group: G) -> None:
        """Forget a group that is closed."""
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
        """Keep nothing any more: this process ends."""
        self._ending = True
        self.close()

    def _forget_all(self) -> None:
        self._lock = threading.RLock()
        known = [*self._taken.values(), *([self._waiting] if self._waiting is not None else [])]
        self._waiting = None
        self._taken.clear()
        for _, group in known:
            group.drop()
