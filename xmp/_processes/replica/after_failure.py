"""The report of an exception, and what a replica sends after it: the variables of its frames."""

from __future__ import annotations

import os
from contextlib import suppress

from xmp._processes.messages.replica import ExceptionRaised, VariablesTaken

from .channel import SupervisorChannel
from .exit import report_failure

__all__ = ["SWITCH", "report_raised"]

SWITCH = "XMP_LOCALS"
"""Set to ``off``, nothing is sent."""


def report_raised(
    channel: SupervisorChannel, report: ExceptionRaised, error: BaseException
) -> None:
    """Send the report of an exception, then what the user's innermost frames had, if any."""
    report_failure(channel, report)
    if os.environ.get(SWITCH) != "off":
        with suppress(Exception):  # the failure itself has been reported
            _send_variables(channel, report.rank, error)


def _send_variables(channel: SupervisorChannel, rank: int, error: BaseException) -> None:
    # Imported by a replica that has failed: what a template has loaded costs every replica pages.
    from xmp._frame_values import taken
    from xmp._processes.report.short_text import library_of

    if text := taken(error, library_of):
        channel.send(VariablesTaken(rank, text))
