"""The link of a launch to the other hosts of its job, as the rules for a host see it.

The engine does not know how hosts reach each other: it is handed a link (``HostLink``). The rules
(``_rules/host_rules``) decide what is reported there, and what follows from what is heard.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xmp._processes.system import linux, processes
from xmp._rules.host_rules import Heard, HostAction, HostEvent, HostRules

if TYPE_CHECKING:
    from .job import HostLink
    from .link import Link

__all__ = ["OtherHosts"]


_LOOK_EVERY = 2.0
"""Seconds between two looks whether the process that connects the hosts is stopped."""


class OtherHosts:
    """The other hosts, in one attempt; ``keeps``: another one may follow, which needs the link."""

    def __init__(self, link: HostLink, keeps: bool, for_driver: bool) -> None:
        self._link = link
        self.rules = HostRules(keeps, for_driver)

    def feed(self, event: HostEvent) -> list[HostAction]:
        """Take an event, and report what follows to the other hosts. Return what else to do."""
        rest = []
        for action in self.rules.feed(event):
            if action.to == "hosts":
                getattr(self._link, action.name)(*action.args)
            else:
                rest.append(action)
        return rest

    def hear(self) -> list[HostAction]:
        """Take in what has come from other hosts. Return what to do."""
        link = self._link
        link.take_in()
        proposals, progress, preempted = [*link.proposals], link.progress, link.preempted
        link.proposals.clear()
        link.progress = link.preempted = False
        return self.feed(Heard(link.verdict, link.all_done, progress, preempted, proposals))

    def hear_before_start(self) -> list[HostAction]:
        """Take in a verdict while this host has no replicas; the rest is for these."""
        self._link.take_in()
        return self.feed(Heard(self._link.verdict, has_order=False))

    def readable(self, links: Sequence[Link], timeout: float | None) -> bool:
        """Return whether something comes over these links or from another host in that time."""
        hosts = self._link
        watched = [each.fileno() for each in links] + ([] if hosts.lost else [hosts.fileno()])
        seconds = _LOOK_EVERY if timeout is None else min(timeout, _LOOK_EVERY)
        if linux.any_ready(watched, select.POLLIN, seconds):
            return True
        if processes.is_stopped(hosts.pid):
            # The other hosts give this one up; here, too, the end of the link ends the launch.
            processes.kill(hosts.pid)
        for link in links if self.rules.stopped else ():
            if link.is_stopped():
                link.kill()
        return False
