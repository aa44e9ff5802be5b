"""The processes of a launch that no signal ends, and the devices that they hold."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Iterable
from pathlib import Path

from xmp._os import log
from xmp._processes.system import processes
from xmp._words.errors import XmpError
from xmp._words.types import ForkRules

from .replica_process import ReplicaProcess

__all__ = ["added", "after"]

_WAIT_SECONDS = 5.0  # a driver may take some to release a device
_STEP_SECONDS = 0.02


def after(replicas: Iterable[ReplicaProcess], rules: ForkRules) -> str:
    """Wait for the replicas whose end was not reported; names those that still exist.

    Such a process is in a system call that no signal ends, or in a frozen control group.
    """
    end = time.monotonic() + _WAIT_SECONDS
    left = [process for process in replicas if process.reported is None]
    while left := [process for process in left if not processes.is_gone(process.pid)]:
        if time.monotonic() >= end:
            break
        time.sleep(_STEP_SECONDS)  # not children of this process; not every kernel has pidfds
    text = "\n".join(_line(process, rules) for process in left)
    if text:
        log.warning(text)
    return text


def added(error: BaseException, leftovers: str) -> BaseException:
    """Return the error, whose text also names the processes that still exist."""
    if isinstance(error, XmpError):
        error._add(leftovers)
    return error


def _line(process: ReplicaProcess, rules: ForkRules) -> str:
    from xmp._os.probe.holders import open_files  # most launches leave nothing

    files = open_files(Path(f"/proc/{process.pid}"))
    held = sorted({f for f in files if any(fnmatch.fnmatch(f, p) for p in rules.device_files)})
    what = f"holds {', '.join(held)} and " if held else ""
    return (
        f"process {process.pid} (rank {process.rank}) {what}did not end by SIGKILL: the kernel "
        "ends it when its system call returns or its control group is thawed"
    )
