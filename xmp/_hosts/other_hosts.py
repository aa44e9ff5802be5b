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
"""The user's own name for a job, in addition to the name from the scheduler that placed it."""
_PULSES_PER_LIMIT = 16

_one_at_a_time = threading.Lock()
_latest: HostLink | None = None
"""The link of the latest launch over several hosts; it rests between two launches."""


class OtherHosts:
    """The link of one launch, made for its first attempt and kept for its restarts."""

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
        """Return the ports to hold, without the carrier's if a carrier process already has it.

        Makes the link if the plan has a meeting and this is the first attempt.
        """
        if plan.meeting is not None and self._link is None:
            seconds = seconds_to_meet(call.settings.limits, called)
            self._link = _link(plan, plan.meeting, call, known, seconds)
        has_its_own = self._link is not None and self._link.started
        return tuple(need for need in plan.needs if need.name != "carrier" or not has_its_own)

    def meet(self, call: Call, listeners: Mapping[str, int]) -> HostLink | None:
        """Wait until the launchers of all hosts have come. Return None if this is the only host.

        Raises PlanError if the hosts do not fit together, StartError if one has not come.
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
        """Leave the other hosts when no replica was started."""
        if self._link is not None:
            self._link.end()


@contextmanager
def _awaited(link: HostLink) -> Iterator[None]:
    """While hosts are awaited, tell a user who asks or interrupts which hosts are missing."""
    try:
        with _processes.on_quit(lambda: log.say(f"xmp: {link.awaited}")):
            yield
    except BaseException as error:
        link.end()
        if isinstance(error, KeyboardInterrupt) and not error.args:
            error.args = (f"xmp waited for the hosts of the job: {link.awaited}",)
        raise


def place(plan: JobPlan, call: Call, known: HostFacts, seconds: float) -> int:
    """Ask host 0 of an ``open`` meeting for this host's index; the launch takes over the link.

    Raises StartError if no host 0 has come within ``seconds``, or no index is left.
    """
    assert plan.meeting is not None
    meeting = replace(plan.meeting, index=-1, open=False)
    link = _link(plan, meeting, call, known, seconds)
    with _awaited(link):
        link.start()
        return link.place(lambda line: log.warning(line))


def rests_at(meeting: HostMeeting) -> bool:
    """Return whether a carrier process rests that holds this meeting's port."""
    return _latest is not None and _latest.rests_at(meeting)


def shutdown() -> None:
    """End the carrier process that rests between two launches."""
    if _latest is not None and _latest.resting:
        _latest.end()


def _forget() -> None:
    if _latest is not None:
        _latest.drop()


# A child of the program may launch as well, and then needs the port.
os.register_at_fork(before=shutdown, after_in_child=_forget)
atexit.register(shutdown)


def seconds_to_meet(limits: Limits | None, called: int) -> float:
    """Return the seconds that the hosts of a launch, ``called`` at that time, still have to come.

    Only whole seconds that have passed (in looking up names) are subtracted, so that messages show
    the limit's number as the user knows it.
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
    """Make the link of this launch, whose hosts may take ``seconds`` to come."""
    from .carrier.host_link import HostLink

    job = f"{known.env.get(_JOB, '')}/{meeting.job}"
    secret = os.fsencode(known.env.get(SECRET, ""))
    card = _card(plan, meeting, call, known)
    link = HostLink(meeting, card, seconds, job, secret, _pace(call.settings.limits))
    with _one_at_a_time:
        _replace_latest(link)
    return link


def _replace_latest(link: HostLink) -> None:
    """Let the link take over the previous one's process. Raises PlanError if that one is busy."""
    global _latest
    if _latest is not None:
        if _latest.busy:
            raise PlanError(
                "a launch of this program over several hosts runs already: join it before the next "
                "one (the hosts could not agree which of two is which)",
                code="XMP-P09",
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
    """Return the seconds between two messages about progress, for ``hang_timeout``."""
    hang = limits.hang if limits is not None else None
    return 1.0 if hang is None else min(1.0, hang / 1e9 / _PULSES_PER_LIMIT)


def _framework(plan: JobPlan, known: HostFacts) -> str:
    """Return runtime, framework with version, and backend: "cpu, torch 2.13.0, backend gloo"."""
    name = {"jax": "jax", "paddle": "paddle"}.get(plan.runtime, "torch")
    version = known.frameworks.get(name)
    group = dict(plan.hosts[0].replicas[0].settings).get("backend")
    parts = plan.runtime, version and f"{name} {version}", group and f"backend {group}"
    return ", ".join(part for part in parts if part)
