"""The error file of torch's ``@record``, which is written by the replica's code alone.

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
    """Return the message and the traceback; empty if the file is missing or has another form."""
    path = dict(plan.set).get(_NAME)
    if not path or not os.path.lexists(path):
        return "", ""
    import json  # here, since a module that a template has loaded costs every replica pages

    try:
        return _of(json.loads(_text(path)))
    except (OSError, ValueError, RecursionError):
        return "", ""


def _text(path: str) -> bytes:
    """Return the file's text. Raise OSError if it is no regular file, or is too long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LIMIT:
            raise OSError("no file of torch's")
        return os.read(descriptor, _LIMIT)
    finally:
        os.close(descriptor)


def _of(data: Any) -> tuple[str, str]:
    """Return message and traceback; a handler of the program's own may write less, or more."""
    message = data.get("message") if isinstance(data, dict) else None
    trace = None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        trace = extra.get("py_callstack") if isinstance(extra, dict) else None
        message = message.get("message")
    return message if isinstance(message, str) else "", trace if isinstance(trace, str) else ""
