"""``xmp run -n 1``: the only replica is this process, with the terminal."""

from __future__ import annotations

import contextlib
import sys
import traceback

from xmp._calls.here import run_here
from xmp._inside.script_runs import ScriptRun, run_in_replica
from xmp._os import log
from xmp._processes import exit_status
from xmp._words.types import Request

__all__ = ["run"]

_INTERRUPTED = 130  # 128 + SIGINT


def run(request: Request, script: ScriptRun, seed: int | None) -> int | None:
    """Run the script and return its exit status; a message of ``sys.exit`` is printed.

    None, with nothing begun, in a job of several hosts, which needs the engine. Raises XmpError for
    what does not fit this host, before the script begins.
    """
    raised: list[BaseException] = []

    def main(rank: int) -> None:
        try:
            run_in_replica(rank, script)
        except BaseException as error:  # it must not be taken for an error of xmp
            raised.append(error)

    if run_here(request, main, (), {}, seed) is None:
        return None
    return _status(raised[0]) if raised else 0


def _status(error: BaseException) -> int:
    """As the interpreter ends a script that raises; its traceback begins with the script."""
    if isinstance(error, SystemExit):
        return exit_status(error)
    frames = log.users_frames(error.__traceback__)
    if sys.stderr is not None:
        with contextlib.suppress(Exception):  # the script has closed it, or its reader has gone
            traceback.print_exception(type(error), error, frames)
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
