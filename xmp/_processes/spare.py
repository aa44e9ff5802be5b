"""A child that is forked before anybody asks for one: the next supervisor begins at once.

Forking a process that has imported torch takes 2 ms, and the first touch of each page in the
child 3 µs more: all that is done while nobody waits.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from . import family
from .wire import Closed, Wire, pair

__all__ = ["NAME", "Spare"]

NAME = "xmp-spare"


class Spare:
    """The server's handle on its waiting child."""

    def __init__(self, leave: Callable[[], None], be: Callable[[Wire], NoReturn]) -> None:
        """Fork it. In the child, ``leave`` lets go of the server's own descriptors."""
        ours, theirs = pair()
        self.pid = os.fork()
        if self.pid == 0:
            leave()
            ours.close()
            be(theirs)
        theirs.close()
        self._wire = ours

    def give(self, request: tuple[Any, ...], descriptors: list[int]) -> bool:
        """Hand a request over; False where it is of no use, and gone."""
        if family.is_stopped(self.pid):
            self.end()
            return False
        try:
            self._wire.send(request, descriptors)
        except Closed:  # somebody killed it: its end will be reaped
            return False
        finally:
            self._wire.close()
        return True

    def close(self) -> None:
        """Close our end: a child of ours, or one that nobody needs, sees the end."""
        self._wire.close()

    def end(self) -> None:
        """End it; it is reaped where all children are."""
        self.close()
        os.kill(self.pid, signal.SIGKILL)
