"""The launchers of a job's other hosts: they meet before any replica starts, and at the end."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from xmp import _processes
from xmp._inside.launch_key import SECRET
from xmp._os import log
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Limits, PortNeed

from .own_address import facing

if TYPE_CHECKING:
    from xmp._processes import Call
    from xmp._words.host_words import HostMeeting

    from .carrier.host_link import HostLink
    from .carrier.words import HostCard

__all__ = ["OtherHosts", "place", "rests_at", "seconds_to_meet", "shutdown"]

_START = 300.0
"""Seconds for all hosts to come, without ``start_timeout``: machines boot, images are pulled."""
_JOB = "XMP_JOB_ID"
"""The user's own name for a job, beside that of the launcher that has placed it."""
_PULSES_PER_LIMIT = 16

_one_at_a_time = threading.Lock()
_latest: HostLink | None = None
"""The link of the latest launch over several hosts; between two launches it rests."""


class OtherHosts:
    """The link of one launch, made for its first attempt and kept for the others."""

    def __init__(self) -> None:
        self._link: HostLink | None = None

    def facing(
        self, known: HostFacts, meeting: HostMeeting, limits: Limits | None, called: int
    ) -> HostFacts:
        """Return the facts with the address of this host that faces host 0.

        Raises:
            StartError: the name service does not answer in time.
        """
        return facing(known, meeting, seconds_to_meet(limits, called))

    def needs_of(
        self, plan: JobPlan, call: Call, known: HostFacts, called: int
    ) -> tuple[PortNeed, ...]:
        """The ports to hold; a carrier process from before has its own."""
        if plan.meeting is not None and self._link is None:
            seconds = seconds_to_meet(call.settings.limits, called)
            self._link = _link(plan, plan.meeting, call, known, seconds)
        has_its_own = self._link is not None and self._link.started
        return tuple(need for need in plan.needs if need.name != "carrier" or not has_its_own)

    def meet(self, call: Call, listeners: Mapping[str, int]) -> HostLink | None:
        """Wait until the launchers of all hosts have come; None where this is the only host.

        Raises PlanError when the hosts do not fit together, StartError when one has not come.
        """
        link = self._link
        if link is None:
            return None
        if not link.started:
            link.start(listeners.get("carrier", -1))
        with _awaited(link):
            link.come(call.settings.restart_count, lambda line: log.warning(line))
        return link

    def leave(self) -> None:
        """Leave the other hosts, if nothing was started."""
        if self._link is not None:
            self._link.end()


@contextmanager
def _awaited(link: HostLink) -> Iterator[None]:
    """While hosts are awaited: a user who asks, or interrupts, hears who is missing."""
    try:
        with _processes.on_quit(lambda: log.say(f"xmp: {link.awaited}")):
            yield
    except BaseException as error:
        link.end()
        if isinstance(error, KeyboardInterrupt) and not error.args:
            error.args = (f"xmp waited for the hosts of the job: {link.awaited}",)
        raise


def place(plan: JobPlan, call: Call, known: HostFacts, seconds: float) -> int:
    """Ask host 0 of an ``open`` meeting for this host's index; its launch takes over the link.

    Raises StartError when there is no host 0 within so many seconds, or no index left.
    """
    assert plan.meeting is not None
    meeting = replace(plan.meeting, index=-1, open=False)
    link = _link(plan, meeting, call, known, seconds)
    with _awaited(link):
        link.start()
        return link.place(lambda line: log.warning(line))


def rests_at(meeting: HostMeeting) -> bool:
    """Whether a process rests that has the port of this meeting, and connects its hosts."""
    return _latest is not None and _latest.rests_at(meeting)


def shutdown() -> None:
    """End the process that rests between two launches."""
    if _latest is not None and _latest.resting:
        _latest.end()


def _forget() -> None:
    if _latest is not None:
        _latest.drop()


# A child of the program may launch as well, and needs the port.
os.register_at_fork(before=shutdown, after_in_child=_forget)
atexit.register(shutdown)


def seconds_to_meet(limits: Limits | None, called: int) -> float:
    """How long all hosts of a launch have still to come, which was ``called`` at that time.

    Whole seconds are taken off, for names that were looked up: the user knows the limit's number.
    """
    limits = limits or Limits()
    now = time.monotonic_ns()
    left = [(limits.start / 1e9 if limits.start else _START) - (now - called) // 10**9]
    if limits.total:
        left.append(limits.total / 1e9 - (now - (limits.first or called)) // 10**9)
    return max(0.1, min(left))


def _link(
    plan: JobPlan, meeting: HostMeeting, call: Call, known: HostFacts, seconds: float
) -> HostLink:
    """A link for this launch, whose hosts may take so many seconds to come."""
    from .carrier.host_link import HostLink

    job = f"{known.env.get(_JOB, '')}/{meeting.job}"
    secret = os.fsencode(known.env.get(SECRET, ""))
    card = _card(plan, meeting, call, known)
    link = HostLink(meeting, card, seconds, job, secret, _pace(call.settings.limits))
    with _one_at_a_time:
        _replace_latest(link)
    return link


def _replace_latest(link: HostLink) -> None:
    """The link takes over the process of the one before; PlanError if that does not rest."""
    global _latest
    if _latest is not None:
        if _latest.busy:
            raise PlanError(
                "a launch of this program over several hosts runs already: join it before the next "
                "one (the hosts could not agree which of two is which)"
            )
        if not link.take_over(_latest):
            _latest.end()
    _latest = link


def _card(plan: JobPlan, meeting: HostMeeting, call: Call, known: HostFacts) -> HostCard:
    from .carrier.words import HostCard

    return HostCard(
        index=meeting.index,
        hosts=meeting.hosts,
        name=call.settings.host_name or known.hostname,
        replicas=len(plan.hosts[0].replicas),
        xmp=str(sys.modules["xmp"].__version__),
        python=known.python,
        framework=_framework(plan, known),
        max_restarts=call.settings.max_restarts,
        launcher="agent" if call.settings.host_name else "launcher",
    )


def _pace(limits: Limits | None) -> float:
    """Seconds between two messages that there is progress, for ``hang_timeout``."""
    hang = limits.hang if limits is not None else None
    return 1.0 if hang is None else min(1.0, hang / 1e9 / _PULSES_PER_LIMIT)


def _framework(plan: JobPlan, known: HostFacts) -> str:
    """Runtime, version of what its replicas import, and group: "cpu, torch 2.13.0, gloo"."""
    name = {"jax": "jax", "paddle": "paddle"}.get(plan.runtime, "torch")
    version = known.frameworks.get(name)
    group = dict(plan.hosts[0].replicas[0].settings).get("backend")
    parts = plan.runtime, version and f"{name} {version}", group and f"backend {group}"
    return ", ".join(part for part in parts if part)
