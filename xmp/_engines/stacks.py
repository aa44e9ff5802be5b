"""The stacks of the living replicas of all hosts, on request."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from xmp._processes.messages.launch import TakeStacks
from xmp._processes.report.stacks import living
from xmp._processes.terminal.console import say

if TYPE_CHECKING:
    from .hosts_launch import HostsLaunch

__all__ = ["StacksOfHosts"]

_ANSWER_WAIT = 5.0


class StacksOfHosts:
    """Asks all hosts, and puts their answers together."""

    def __init__(self, launch: HostsLaunch) -> None:
        self._launch: HostsLaunch = weakref.proxy(launch)  # no cycle may keep large results
        self._prints = False

    def taken(self) -> dict[int, str]:
        """By rank; without those of a host that does not answer."""
        self._ask()
        self._launch.take_in(self._have_come, _ANSWER_WAIT)
        return self._found()

    def print_later(self) -> None:
        """Print them when all have arrived."""
        self._prints = True
        self._ask()

    def came(self) -> None:
        """A host has answered."""
        if self._prints and self._have_come():
            self._prints = False
            say(living(self._found()))

    def _ask(self) -> None:
        for host in self._launch.hosts:
            host.stacks = None
        self._launch.order(TakeStacks())

    def _have_come(self) -> bool:
        return all(host.is_over or host.stacks is not None for host in self._launch.hosts)

    def _found(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for host in self._launch.hosts:
            found |= host.stacks or {}
        return found
