"""``xmp stacks``: what the replicas of a running launch are doing, also where all of it hangs.

A replica writes its stacks into its own memory file when a signal comes, and this process reads the
file: neither the launcher nor the supervisor takes part.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
from collections.abc import Sequence
from typing import Any

from xmp._os import proc
from xmp._os.probe import launches
from xmp._os.probe.launches import RunningLaunch
from xmp._processes.report import stack_texts
from xmp._processes.report.hang_texts import found
from xmp._processes.system import stacks_by_pid
from xmp._processes.system.descriptors import raise_descriptor_limit
from xmp._rules.hang_rules import Finding
from xmp._words.errors import XmpError

__all__ = ["find", "report", "run"]

_NONE = "no launch of yours is running here"


def run(options: argparse.Namespace) -> int:
    """Print the stacks of each launch that the pid names."""
    if why := proc.foreign():
        raise XmpError(why)
    found = find(options.pid)
    if options.json:
        print(json.dumps({"version": 1, "launches": [_as_json(each) for each in found]}, indent=1))
        return 0
    for launch in found:
        print(report(launch))
    return 0


def find(pid: int | None) -> list[RunningLaunch]:
    """Return the launches of a launcher, or the one of a process inside; None for the only one.

    Raises XmpError for a process that has no launch of this user's, and for None where there is
    none or more than one.
    """
    running = launches.launches()
    if pid is None:
        if len(running) == 1:
            return running
        several = "more than one launch is running: give a pid" + _listed(running)
        raise XmpError(several if running else _NONE)
    found = [each for each in running if pid in (each.supervisor.pid, *each.members)]
    found = found or [each for each in running if pid == each.launcher]
    if not found:
        raise XmpError(_why_not(pid) + _listed(running))
    return found


def _why_not(pid: int) -> str:
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return f"there is no process {pid}"
    if owner != os.geteuid():
        return f"process {pid} belongs to {_name(owner)}: only that user may ask for its stacks"
    return f"process {pid} is not a launcher, supervisor or replica of a running launch"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _listed(running: Sequence[RunningLaunch]) -> str:
    if not running:
        return f"; {_NONE}"
    lines = [f"\n  pid {each.launcher}: {_what(each)}; {each.program}" for each in running]
    return "; running are" + "".join(lines)


def _what(launch: RunningLaunch) -> str:
    count = len(launch.replicas)
    return f"{count} replica{'s' * (count != 1)}, supervisor {launch.supervisor.pid}"


def _stopped(launch: RunningLaunch) -> bool:
    return launch.supervisor.state in "Tt"


def _as_json(launch: RunningLaunch) -> dict[str, Any]:
    """Return what docs/guide/commands.md describes, version 1."""
    raise_descriptor_limit()  # two for each replica
    stacks, finding = _where(launch)
    return {
        "launcher": launch.launcher,
        "supervisor": launch.supervisor.pid,
        "replicas": [process.pid for process in launch.replicas],
        "stopped": _stopped(launch),
        "program": launch.program,
        "stacks": stacks,
        "suspects": list(finding.suspects),
        "sure": finding.sure if finding.suspects else None,
        "finding": finding.words,
    }


def _where(launch: RunningLaunch) -> tuple[dict[int, str], Finding]:
    """Return the stacks by rank, and who the others wait for."""
    places = stacks_by_pid.places_of(launch.supervisor.pid, launch.replicas)
    stacks = stacks_by_pid.of_replicas(launch.replicas)
    return stacks, found(places, stacks)


def report(launch: RunningLaunch) -> str:
    """Write what the replicas of a launch are doing, equal stacks once."""
    raise_descriptor_limit()  # two for each replica
    head = f"launch of process {launch.launcher}: {_what(launch)}"
    if _stopped(launch):
        head += " (stopped)"
    stacks, finding = _where(launch)
    lines = [head, f"  {launch.program}", *filter(None, [finding.words])]
    return "\n".join([*lines, *stack_texts.grouped(stacks)])
