"""The report of an exception, followed by the frames' variables and the program's excepthook."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from xmp._os import signals
from xmp._processes.messages.replica import ExceptionRaised, VariablesTaken

from .channel import SupervisorChannel
from .exit import report_failure

__all__ = ["SWITCH", "Hook", "call_hook", "parents_hook", "report_raised"]

Hook = Callable[..., Any]

SWITCH = "XMP_LOCALS"
"""The variable that, set to ``off``, has no variables of frames sent."""


def parents_hook(method: str) -> Hook:
    """Return the ``sys.excepthook`` with which a replica begins, before it sets its own."""
    # Templates and fresh interpreters import only modules that the call needs: no hook is set.
    return sys.excepthook if method == "inherit" else sys.__excepthook__


def report_raised(
    channel: SupervisorChannel, report: ExceptionRaised, error: BaseException, inherited: Hook
) -> None:
    """Send the report of an exception and the variables of the user's innermost frames.

    Then call the program's ``sys.excepthook``, unless the function has ended well.
    """
    report_failure(channel, report)
    if os.environ.get(SWITCH) != "off":
        with suppress(Exception):  # the failure itself has been reported
            _send_variables(channel, report.rank, error)
    if not report.final:
        call_hook(error, inherited)


def _send_variables(channel: SupervisorChannel, rank: int, error: BaseException) -> None:
    # Imported here, after a failure: a module that a template has loaded costs every replica pages.
    from xmp._os.frame_values import taken
    from xmp._processes.report.short_text import library_of

    if text := taken(error, library_of):
        channel.send(VariablesTaken(rank, text))


def call_hook(error: BaseException, inherited: Hook) -> None:
    """Call the ``sys.excepthook`` that this program has set, as Python would, after the report.

    A hook that blocks is ended like anything else that a failed replica still does: by SIGKILL
    after ``grace``. The ``inherited`` hook of a launcher that was forked (IPython's, Sentry's,
    xmp's own) is not called: the launch raises in the launcher, and Python calls it there.
    """
    hook = _below_torch(sys.excepthook)
    if any(hook is each for each in (inherited, sys.__excepthook__, None)):
        return
    from xmp._os.excepthook import users_frames

    try:
        with signals.as_usual():  # code of the program, which may wait for ever
            hook(type(error), error, users_frames(error.__traceback__))
    except BaseException:  # SystemExit too: the end of this replica has already been reported
        with suppress(BaseException):
            sys.stderr.write("Error in sys.excepthook:\n")
            traceback.print_exc()


def _below_torch(hook: Any) -> Any:
    """Return the hook that torch's own calls (torch 2.13, distributed_c10d.py): it adds only the
    rank."""
    if getattr(hook, "__module__", None) != "torch.distributed.distributed_c10d":
        return hook
    kept = dict(zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=False))
    return kept["old_hook"].cell_contents if "old_hook" in kept else None
