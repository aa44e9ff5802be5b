"""What of a launch is still there at its end, as no signal ends it, and what it holds."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Iterable
from pathlib import Path

from xmp._errors import XmpError
from xmp._types import ForkRules

from . import family
from .job import ReplicaProcess
from .terminal import say

__all__ = ["added", "after"]

_PATIENCE = 5.0  # seconds: a driver that takes a device down may need some
_STEP = 0.02


def after(processes: Iterable[ReplicaProcess], rules: ForkRules) -> str:
    """Wait until the processes whose end nobody has reported are gone; else name them.

    All that is left is in a system call that no signal ends, or in a frozen control group.
    """
    end = time.monotonic() + _PATIENCE
    left = [process for process in processes if process.is_alive()]
    while left := [process for process in left if not family.is_gone(process.pid)]:
        if time.monotonic() >= end:
            break
        time.sleep(_STEP)  # they are no children of ours, and a pidfd is not everywhere
    told = "\n".join(_line(process, rules) for process in left)
    if told:
        say(f"xmp: {told}")
    return told


def added(error: BaseException, remains: str) -> BaseException:
    """The error, with what is still there."""
    if remains and isinstance(error, XmpError) and remains not in str(error):
        error.args = (f"{error}\n\n{remains}", *error.args[1:])
    return error


def _line(process: ReplicaProcess, rules: ForkRules) -> str:
    from xmp._probe.holders import open_files  # most launches leave nothing

    files = open_files(Path(f"/proc/{process.pid}"))
    held = sorted({path for path in files if _is_device(path, rules)})
    what = f"holds {', '.join(held)} and " if held else ""
    return (
        f"process {process.pid} (rank {process.rank}) {what}did not end by SIGKILL: the kernel "
        "ends it when its system call returns or its control group is thawed"
    )


def _is_device(path: str, rules: ForkRules) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in rules.device_files)
