"""C's standard output: what native code prints in a replica arrives in whole lines."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

__all__ = ["buffer_lines", "flush"]

_LINE_BUFFERED = 1  # _IOLBF of setvbuf(3)
_libc: Any = ctypes.CDLL(None)
try:
    _c_stdout: Any = ctypes.c_void_p.in_dll(_libc, "stdout")
except ValueError:  # pragma: no cover - macOS names it __stdoutp
    _c_stdout = None


def buffer_lines(inherited: bool = False) -> None:
    """Buffer standard output by lines, C's too: a process that is killed has written its last one.

    What C's buffer holds is dropped where it is ``inherited``: the launcher itself will write it.
    """
    reconfigure: Any = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)
    if _c_stdout is not None:
        _libc.setvbuf(_c_stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))
    # glibc buffers by lines only once its buffer was flushed.
    if inherited:
        _flush_to_null()
    else:
        flush()


def _flush_to_null() -> None:
    kept, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    flush()
    os.dup2(kept, 1)
    os.close(kept)
    os.close(null)


def flush() -> None:
    """Write out what C's standard output still holds: _exit(2) drops it."""
    if _c_stdout is not None:
        _libc.fflush(_c_stdout)  # not all streams: the launcher itself writes out its own files
