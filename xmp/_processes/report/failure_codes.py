"""The code of the error for a failed replica: which kind of end it was."""

from __future__ import annotations

from xmp._processes.messages.order import MALFORMED, Failure
from xmp._rules.watch import STOPPED

__all__ = ["CALLED_ON_IT", "code_of"]

CALLED_ON_IT = "was called on it"
"""Words after the method of ``context.processes[i]`` by which the program has ended a replica."""

_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")


def code_of(failure: Failure) -> str:
    """Return the code of the error whose cause this failure is (``xmp._explain``)."""
    if failure.kind == MALFORMED or failure.hung_up:
        return "XMP-R08"
    asked = failure.kind == "interrupted" or failure.label == STOPPED
    if asked or failure.why.endswith(CALLED_ON_IT):
        return "XMP-R06"
    if failure.signal_name in _CRASHES:
        return "XMP-R03"
    if failure.signal_name or failure.why:  # or a shell's exit code for a process that was killed
        return "XMP-R04" if failure.why == "out of memory" else "XMP-R05"
    if not failure.entered:
        return "XMP-R09"
    if failure.kind != "raised":
        return "XMP-R02"
    return "XMP-R07" if failure.final else "XMP-R01"
