"""The launchers of a job's other hosts: they meet before any replica starts, and at the end."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import _log
from ._types import HostFacts, JobPlan, Limits, PortNeed

if TYPE_CHECKING:
    from ._carrier.host_link import HostLink
    from ._ports import PortLease
    from ._processes import Call

__all__ = ["OtherHosts"]

_START = 300.0
"""Seconds for all hosts to come, without ``start_timeout``: machines boot, images are pulled."""
_JOB = (
    "XMP_JOB_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "TORCHELASTIC_RUN_ID",
)
"""What schedulers call a job: the same on all of its hosts."""
_PULSES_PER_LIMIT = 16
SECRET = "XMP_JOB_SECRET"

_launches = itertools.count()
"""The launches over several hosts that this program has made: all hosts make them in one order."""


class OtherHosts:
    """The link of one launch, made by its first attempt and kept for the others."""

    def __init__(self, held: PortLease | None = None) -> None:
        self._held = held
        """The ports of the first attempt, where something has held them before."""
        self._link: HostLink | None = None
        self._number = -1

    def needs_of(self, plan: JobPlan) -> tuple[PortNeed, ...]:
        """The ports to hold; after the first attempt the carrier process has its own."""
        return tuple(n for n in plan.needs if n.name != "carrier" or self._link is None)

    def take_held(self) -> PortLease | None:
        """The ports that were held before, once; the caller owns them then."""
        held, self._held = self._held, None
        return held

    def meet(
        self, plan: JobPlan, call: Call, known: HostFacts, listeners: Mapping[str, int]
    ) -> HostLink | None:
        """Wait until the launchers of all hosts have come; None where this is the only host.

        Raises PlanError when the hosts do not fit together, StartError when one has not come.
        """
        if plan.meeting is None:
            return None
        if self._link is None:
            self._link = self._made(plan, call, known)
            self._link.start(listeners.get("carrier", -1))
        try:
            self._link.come(call.restart_count, lambda line: _log.warning(line))
        except BaseException:
            self.leave()
            raise
        return self._link

    def leave(self) -> None:
        """Leave the other hosts, if nothing was started."""
        if self._link is not None:
            self._link.leave()

    def _made(self, plan: JobPlan, call: Call, known: HostFacts) -> HostLink:
        from ._carrier.host_link import HostLink
        from ._carrier.words import HostCard

        assert plan.meeting is not None
        if self._number < 0:
            self._number = next(_launches)
        limits = call.limits
        seconds = limits.start / 1e9 if limits is not None and limits.start else _START
        job = "/".join([*(known.env.get(name, "") for name in _JOB), str(self._number)])
        card = HostCard(
            index=plan.meeting.index,
            hosts=plan.meeting.hosts,
            name=call.host_name or known.hostname,
            replicas=len(plan.hosts[0].replicas),
            xmp=str(sys.modules["xmp"].__version__),
            python=known.python,
            framework=_framework(plan, known),
            max_restarts=call.max_restarts,
        )
        secret = known.env.get(SECRET, "").encode()
        return HostLink(plan.meeting, card, seconds, job, secret, _pace(limits))


def _pace(limits: Limits | None) -> float:
    """Seconds between two messages that there is progress, for ``hang_timeout``."""
    hang = limits.hang if limits is not None else None
    return 1.0 if hang is None else min(1.0, hang / 1e9 / _PULSES_PER_LIMIT)


def _framework(plan: JobPlan, known: HostFacts) -> str:
    """The runtime, and the version of what its replicas import: "cpu, torch 2.13.0"."""
    name = {"jax": "jax", "paddle": "paddle"}.get(plan.runtime, "torch")
    version = known.frameworks.get(name)
    return f"{plan.runtime}, {name} {version}" if version else plan.runtime
