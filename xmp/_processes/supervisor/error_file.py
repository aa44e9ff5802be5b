"""What torch's ``@record`` has written of a failure: a file that only the replica's code writes.

Its form is that of torch 2.13, torch/distributed/elastic/multiprocessing/errors/error_handler.py.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from xmp._words.types import ReplicaPlan

__all__ = ["recorded"]

_NAME = "TORCHELASTIC_ERROR_FILE"
_LIMIT = 64 * 1024  # bytes; a longer file is no traceback


def recorded(plan: ReplicaPlan) -> tuple[str, str]:
    """The message and the traceback; empty where nothing has been written, or something else."""
    path = dict(plan.set).get(_NAME)
    if not path or not os.path.lexists(path):
        return "", ""
    import json  # here: what a template has loaded costs every replica pages

    try:
        return _of(json.loads(_text(path)))
    except (OSError, ValueError, RecursionError):
        return "", ""


def _text(path: str) -> bytes:
    """Raises OSError for what is no regular file, or cannot be read without waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LIMIT:
            raise OSError("no file of torch's")
        return os.read(descriptor, _LIMIT)
    finally:
        os.close(descriptor)


def _of(data: Any) -> tuple[str, str]:
    """A handler of the program's own may write a message alone, or more than torch's does."""
    message = data.get("message") if isinstance(data, dict) else None
    trace = None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        trace = extra.get("py_callstack") if isinstance(extra, dict) else None
        message = message.get("message")
    return message if isinstance(message, str) else "", trace if isinstance(trace, str) else ""
