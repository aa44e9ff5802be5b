"""The stacks of the living replicas of all hosts, on request."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from xmp._os import log
from xmp._os.log import say
from xmp._processes.messages.launch import TakeStacks
from xmp._processes.report.stack_texts import living

if TYPE_CHECKING:
    from .host import LaunchOverHosts

__all__ = ["StacksOfHosts"]

_ANSWER_WAIT = 3.0
"""Seconds; a supervisor takes at most 1 for its replicas."""


class StacksOfHosts:
    """Asks all hosts, and puts their answers together."""

    def __init__(self, launch: LaunchOverHosts) -> None:
        self._launch: LaunchOverHosts = weakref.proxy(launch)  # no cycle may keep large results
        self._prints: float | None = None
        """Until when answers are waited for, to print them."""

    def taken(self) -> dict[int, str]:
        """By rank; without those of a host that does not answer, which a warning names."""
        self._ask()
        self._launch.take_in(self._have_come, _ANSWER_WAIT)
        if silent := self._silent():
            log.warning("no stacks: %s", silent)
        return self._found()

    def print_later(self) -> None:
        """Print them when all have arrived, or after 3 s those that have."""
        self._prints = time.monotonic() + _ANSWER_WAIT
        self._ask()

    def came(self) -> None:
        """A host has answered."""
        if self._prints is not None and self._have_come():
            self._print()

    def left(self) -> float | None:
        """Seconds until those that have come are printed; None where none are."""
        return None if self._prints is None else self._prints - time.monotonic()

    def glance(self) -> None:
        """Print without the hosts that do not answer, if it is time."""
        left = self.left()
        if left is not None and left <= 0:
            self._print()

    def _print(self) -> None:
        self._prints = None
        silent = self._silent()
        say("\n".join([living(self._found()), *([f"no stacks: {silent}"] if silent else [])]))

    def _ask(self) -> None:
        for host in self._launch.hosts:
            host.stacks = None
        self._launch.order(TakeStacks())

    def _have_come(self) -> bool:
        return all(host.is_over or host.stacks is not None for host in self._launch.hosts)

    def _silent(self) -> str:
        """Which hosts have not answered; empty where all have."""
        names = [
            f"host {host.agent.index} ({host.agent.name})"
            for host in self._launch.hosts
            if not host.is_over and host.stacks is None
        ]
        verb = "has" if len(names) == 1 else "have"
        return f"{', '.join(names)} {verb} not answered within {_ANSWER_WAIT:g} s" if names else ""

    def _found(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for host in self._launch.hosts:
            found |= host.stacks or {}
        return found
