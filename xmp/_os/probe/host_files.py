"""The files in which schedulers list a job's hosts: one line for each process or slot."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from xmp._plan.clusters.announced import FILES

__all__ = ["host_files"]

_LONGEST = 1 << 20  # bytes: 10,000 hosts with 8 slots each


def host_files(env: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the hosts, each once, by the variable that names the file."""
    found = {name: " ".join(dict.fromkeys(_text(env.get(name, "")).split())) for name in FILES}
    return {name: hosts for name, hosts in found.items() if hosts}


def _text(path: str) -> str:
    """Read a regular file; return "" for anything else: a FIFO would wait for its writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, _LONGEST).decode(errors="replace") if regular else ""
    except OSError:
        return ""
    finally:
        os.close(descriptor)
