"""The stacks of the living replicas of all hosts, on request."""

from __future__ import annotations

import time
from collections.abc import Sequence

from xmp._os import log
from xmp._os.log import say
from xmp._processes.report.hang_texts import UNASKED, living, noticed_over_hosts
from xmp._words.record import RankPlace

from .host import Host

__all__ = ["StacksOfHosts"]


class StacksOfHosts:
    """Puts the answers of all hosts together."""

    seconds = 3.0
    """How long answers are waited for; a supervisor takes at most 1 s for its replicas."""

    def __init__(self) -> None:
        self._hosts: Sequence[Host] = ()
        self._prints: float | None = None
        """Until when answers are waited for, to print them."""
        self._asked = True
        """True: the user has asked. False: a host whose replicas wait."""
        self._late = False
        self._noticed = "", 0

    def ask(self, hosts: Sequence[Host], prints: bool = False) -> None:
        """Forget earlier answers. If it ``prints``, do that when all hosts have answered."""
        self._hosts = hosts
        for host in hosts:
            host.stacks = None
        if prints:
            self._prints, self._asked = time.monotonic() + self.seconds, True

    def ask_who_is_late(self, hosts: Sequence[Host], late: bool) -> bool:
        """Prepare to name ranks that others wait for; return False while an answer is awaited.

        ``late``: name them even if they work.
        """
        if self._prints is not None:
            self._late = self._late or late
            return False
        self.ask(hosts, prints=True)
        self._asked, self._late = False, late
        return True

    def have_come(self) -> bool:
        """Return whether all hosts have answered that can."""
        return all(host.is_over or host.stacks is not None for host in self._hosts)

    def taken(self) -> dict[int, str]:
        """Return the stacks by rank; warn of hosts that have not answered."""
        if silent := self._silent():
            log.warning("no stacks: %s", silent)
        return self._found()

    def came(self) -> str:
        """Print the stacks if this answer was the last one; return what was said unasked."""
        return self._print() if self._prints is not None and self.have_come() else ""

    def left(self) -> float | None:
        """Return the seconds until the stacks that have come are printed; None if none are."""
        return None if self._prints is None else self._prints - time.monotonic()

    def glance(self) -> None:
        """Print without the hosts that do not answer, if it is time."""
        left = self.left()
        if left is not None and left <= 0:
            self._print()

    def _print(self) -> str:
        self._prints = None
        if not self._asked:
            return self._say_who_is_late()
        silent = self._silent()
        where = living(self._found(), self._places())
        say("\n".join([where, *([f"no stacks: {silent}"] if silent else [])]))
        return ""

    def _say_who_is_late(self) -> str:
        """Say it once, though each host has its replicas waiting; nothing if a host is silent."""
        places = self._places()
        words = noticed_over_hosts(places, self._found(), self._late)
        number = max((place.record.number for place in places), default=0)
        what = words.partition("(")[0], number  # without the seconds
        if not words or self._silent() or what == self._noticed:
            return ""
        self._noticed = what
        say(f"xmp: {words} {UNASKED}")
        return words

    def _silent(self) -> str:
        """Return which hosts have not answered; empty if all have."""
        names = [
            f"host {host.agent.index} ({host.agent.name})"
            for host in self._hosts
            if not host.is_over and host.stacks is None
        ]
        verb = "has" if len(names) == 1 else "have"
        return f"{', '.join(names)} {verb} not answered within {self.seconds:g} s" if names else ""

    def _places(self) -> list[RankPlace]:
        places = (place for host in self._hosts if host.stacks for place in host.places)
        return sorted(places, key=lambda place: place.rank)

    def _found(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for host in self._hosts:
            found |= host.stacks or {}
        return found
