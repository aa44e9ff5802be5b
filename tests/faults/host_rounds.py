"""Run a round over two hosts, and look at what each of them says and at what is left."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_judge import misses, seconds
from host_kinds import START, HostRound

from tests.support.network_job import NetworkJob, job_on_network
from tests.support.stage import slowness
from tests.support.waiting import until

__all__ = ["HOSTS_AT_ONCE", "HostOutcome", "play"]

HOSTS_AT_ONCE = 3
FUNCTIONS = {"roll-call": "sums", "first": "waits", "allreduce": "sums", "end": "late"}
PAUSE = 1.5


@dataclass(frozen=True)
class HostOutcome:
    """How a round went."""

    round: HostRound
    misses: list[str]
    seconds: float | None
    """From the fault to the last host's error, where there is one."""

    def __str__(self) -> str:
        verdict = "" if self.seconds is None else f" all know after {self.seconds:.2f} s"
        place = f"{self.round.seed}/{self.round.number}"
        line = f"{'MISS' if self.misses else 'ok  '} {place:>9} {self.round}:{verdict}"
        return "\n".join([line, *(f"     {miss}" for miss in self.misses)])


def play(round: HostRound) -> HostOutcome:
    """Run a round in its own folder, which goes with it unless something was missed."""
    folder = Path(tempfile.mkdtemp(prefix="xmp-hosts-"))
    found: list[str] = []
    took = None
    try:
        with job_on_network(folder, **_job(round)) as job:
            fault = _happens(round, job)
            said = _said(round, job)
            took = seconds(round, fault, said)
            late = took is not None and took > round.limit
            found = misses(round, fault, said, slowness() if late else 1.0)
            left = job.left()
            found += [f"left: {left}"] if left else []
    except (AssertionError, OSError) as error:
        found.append(f"{type(error).__name__}: {error}")
    if found:
        found.append(f"its files: {folder}")
    else:
        shutil.rmtree(folder)
    return HostOutcome(round, found, took)


def _job(round: HostRound) -> dict[str, Any]:
    """The fields of ``Do``."""
    function = FUNCTIONS["allreduce" if round.kind == "launcher-paused" else round.moment]
    do: dict[str, Any] = {"function": function, "victim": round.victim, "step": round.step}
    if round.fault.words:
        do["how"] = round.kind
    if round.moment == "roll-call":
        do["victim"] = -1
        if round.kind != "launcher-paused":
            do["options"] = {"start_timeout": START}
    elif round.kind == "launcher-paused" and round.moment == "end":
        do["function"] = FUNCTIONS["end"]
    if round.kind == "launcher-stopped":
        do |= {"how": "raise", "after_go": True}
    elif round.moment == "first" and round.fault.process and round.kind != "launcher-paused":
        do["victim"] = -1
    return do


# --- the fault -----------------------------------------------------------------------------------


def _happens(round: HostRound, job: NetworkJob) -> int:
    """Have it happen at its moment; when that was, in monotonic nanoseconds."""
    if round.moment == "roll-call":
        job.start(round.host)
        job.find(round.host, "carrier")
        _attack(round, job)
        at = time.monotonic_ns()
        job.start(1 - round.host)
        return at
    job.start()
    if round.fault.words:
        job.reached("fault")
        return job.fault()
    if round.moment == "first" and round.kind != "launcher-paused":
        job.in_function()
    else:
        job.reached("fault")
    at = time.monotonic_ns()
    _attack(round, job)
    return job.fault() if round.kind == "launcher-stopped" else at


def _attack(round: HostRound, job: NetworkJob) -> None:
    """Do it, from outside."""
    if not round.fault.process:
        getattr(job.hosts[round.host], round.kind.replace("-", "_"))()
        return
    if round.kind == "launcher-stopped":
        job.stop(round.host)
        (job.stage.folder / "go").touch()
        until(lambda: (job.stage.folder / "fault").exists(), 10, "the failure of a replica")
    elif round.kind == "launcher-paused":
        job.stop(round.host)
        time.sleep(PAUSE)  # nothing happens meanwhile that one could wait for
        job.resume(round.host)
        (job.stage.folder / "go").touch()
    else:
        job.kill(round.host, round.fault.process)


# --- what is said --------------------------------------------------------------------------------


def _said(round: HostRound, job: NetworkJob) -> dict[int, dict[str, Any]]:
    """What the hosts say that can; the other one first, which does not wait for a stopped one."""
    said = {1 - round.host: job.said(1 - round.host)}
    if round.kind == "launcher-stopped":
        job.resume(round.host)
    if round.of_a_replica or round.fault.own or round.kind == "launcher-paused":
        said[round.host] = job.said(round.host)
    else:
        until(lambda: job.launchers[round.host].poll() is not None, 30, "the end of its launcher")
    return said
