"""Findings of ``xmp doctor``: on memory, and on where the launchers of several hosts meet.

The ports of host 0 are tried elsewhere, together with all other ports of a fixed number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xmp._words.host_words import HostMeeting
from xmp._words.types import HostFacts, JobPlan

from . import resources

__all__ = [
    "Finding", "LookAtPort", "OneOfSeveral", "found", "memory", "shared", "shared_memory",
    "verdict",
]  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One finding: a ``problem`` fails a launch, a ``warning`` may fail it, a ``note`` informs."""

    level: str
    text: str
    advice: str = ""
    code: str = ""
    """The code of the error with which a launch would be refused."""

    def __str__(self) -> str:
        return f"{self.level}: {self.text}" + (f" -> {self.advice}" if self.advice else "")


# --- memory and /dev/shm -------------------------------------------------------------------------


# Arguments and results travel in memory files. The size of /dev/shm does not limit these, but a
# control group counts them as memory, as it counts files in /dev/shm.

MIB, GIB = 1 << 20, 1 << 30
LEAST = GIB
"""The least memory per replica without a warning: half of it goes to a fresh interpreter with torch
and a device plugin, without a model."""


def memory(root: Path, installed: int | None, replicas: int) -> Iterator[Finding]:
    """Yield whether ``replicas`` fit into free memory; if unknown, into ``installed`` bytes."""
    free, bound = resources.memory_free(root) or (installed, "")
    if free is None:
        return
    what = f"{_size(free)} of memory free" + (f" (of {bound})" if bound else "")
    each = free / replicas
    text = f"{what}, {_size(each)} for each replica"
    advice = "use fewer replicas, or wrap the model in MpModelWrapper, which shares its weights"
    yield Finding("warning", text, advice) if each < LEAST else Finding("note", text)


def shared_memory(root: Path) -> tuple[int, int] | None:
    """Return the size of /dev/shm and its free part, in bytes; None without /dev/shm."""
    try:
        state = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def shared(found: tuple[int, int] | None) -> Iterator[Finding]:
    """Yield what is too small in /dev/shm: tensors in arguments and data loaders need it.

    In a container it has 64 MiB by default.
    """
    if found is None:
        yield Finding("warning", "this host has no /dev/shm", "mount one: tensors are shared there")
        return
    size, free = found
    larger = "make it larger: docker run --shm-size=8g, or an emptyDir with medium: Memory"
    if size < GIB:
        yield Finding("warning", f"/dev/shm has only {_size(size)}", larger)
    if free < min(size // 10, GIB):
        text = f"/dev/shm is nearly full: {_size(free)} of {_size(size)} free"
        yield Finding("warning", text, "remove files that ended programs left (ls -l /dev/shm)")


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{int(count) // MIB} MiB"


# --- several hosts -------------------------------------------------------------------------------


SECRET = "XMP_JOB_SECRET"
SHORT = 16
"""Characters; anyone who has recorded a handshake can try guesses offline."""

LookAtPort = Callable[[str, int], str]
"""Returns what is at an address and port: "xmp", "another program", or why it is unreachable."""


@dataclass(frozen=True)
class OneOfSeveral(Finding):
    """The finding that says which host of a job this is; the other hosts were not examined."""

    index: int = 0
    hosts: int = 1


def verdict(findings: Sequence[Finding]) -> str:
    """Return in words whether a launch would work, as far as this host can know."""
    if any(finding.level == "problem" for finding in findings):
        return "a launch would not work here"
    for found in findings:
        if isinstance(found, OneOfSeveral):
            return (
                f"host {found.index} of {found.hosts} could take part in a launch; the others were "
                "not asked: run this on each of them"
            )
    return "a launch would work here"


def found(plan: JobPlan, facts: HostFacts, reach: LookAtPort | None) -> Iterator[Finding]:
    """Yield what can be said of the meeting; nothing where a launch would have one host."""
    meeting = plan.meeting
    if meeting is None:
        return
    where = f"{meeting.address} port {meeting.port}"
    text = f"this is host {meeting.index} of {meeting.hosts}; their launchers meet at {where}"
    yield OneOfSeveral("note", text, index=meeting.index, hosts=meeting.hosts)
    if meeting.index and reach is not None:
        yield _reached(meeting, where, reach(meeting.address, meeting.port))
    yield _secret(facts.env.get(SECRET, ""), where)


def _reached(meeting: HostMeeting, where: str, what: str) -> Finding:
    if what == "xmp":
        return Finding("note", f"at {where} the coordinator of a launch answers")
    if what == "another program":
        text = f"at {where} another program than xmp listens"
        return Finding("problem", text, "give the job another MASTER_PORT, the same on all hosts")
    if "refused" in what:
        text = f"host 0 is reached at {meeting.address}, where nothing listens at {meeting.port}"
        return Finding("note", f"{text}: as it is before host 0 starts its launch")
    advice = "is MASTER_ADDR an address of host 0, and does a firewall let this port through?"
    return Finding("problem", f"{where} cannot be reached: {what}", advice)


def _secret(secret: str, where: str) -> Finding:
    """Return what a stranger could do; the secret itself is in no report."""
    if len(secret) >= SHORT:
        return Finding("note", f"the hosts prove to each other that they know {SECRET}")
    advice = "set the same long random text on all hosts (docs/guide/security.md)"
    if secret:
        return Finding(
            "warning", f"{SECRET} has {len(secret)} characters: it can be guessed", advice
        )
    text = (
        f"{SECRET} is not set: any program that reaches {where} and guesses the job's id can "
        "come as one of its hosts and end the launch, but not run code"
    )
    return Finding("warning", text, advice)
