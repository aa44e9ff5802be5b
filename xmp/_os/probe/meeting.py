"""Findings of ``xmp doctor`` on where the launchers of several hosts meet, and who could join.

The ports of host 0 are tried elsewhere, together with all other ports of a fixed number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xmp._words.host_words import HostMeeting
from xmp._words.types import HostFacts, JobPlan

from .finding import Finding

__all__ = ["OneOfSeveral", "Reach", "found", "verdict"]

SECRET = "XMP_JOB_SECRET"
SHORT = 16
"""Characters; anyone who has recorded a handshake can try guesses offline."""

Reach = Callable[[str, int], str]
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


def found(plan: JobPlan, facts: HostFacts, reach: Reach | None) -> Iterator[Finding]:
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
