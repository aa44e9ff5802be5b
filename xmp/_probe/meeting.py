"""The meeting of the launchers of several hosts, for ``xmp doctor``: where, and who could come.

The ports of host 0 are tried elsewhere, with all ports that must have a certain number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xmp._host_words import HostMeeting
from xmp._types import HostFacts, JobPlan

from .finding import Finding

__all__ = ["Reach", "found"]

SECRET = "XMP_JOB_SECRET"
SHORT = 16
"""Characters; who has recorded a handshake can try guesses at home."""

Reach = Callable[[str, int], str]
"""What is at an address and port: "xmp", "another program", or why it cannot be reached."""


def found(plan: JobPlan, facts: HostFacts, reach: Reach | None) -> Iterator[Finding]:
    """Nothing where a launch would have one host."""
    meeting = plan.meeting
    if meeting is None:
        return
    where = f"{meeting.address} port {meeting.port}"
    text = f"this is host {meeting.index} of {meeting.hosts}; their launchers meet at {where}"
    yield Finding("note", text)
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
    """What a stranger could do; the secret itself is in no report."""
    if len(secret) >= SHORT:
        return Finding("note", f"the hosts prove to each other that they know {SECRET}")
    advice = "set the same long random text on all hosts (docs/security.md)"
    if secret:
        return Finding(
            "warning", f"{SECRET} has {len(secret)} characters: it can be guessed", advice
        )
    text = (
        f"{SECRET} is not set: whoever reaches {where} and guesses the job's id can come as one of "
        "its hosts and end the launch, but not run code"
    )
    return Finding("warning", text, advice)
