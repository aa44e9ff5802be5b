"""C's standard output, buffered so that native code of a replica prints whole lines."""

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


def buffer_lines() -> None:
    """Buffer standard output by lines, C's too: whole lines of a killed process are not lost."""
    reconfigure: Any = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)
    if _c_stdout is not None:
        flush()
        _libc.setvbuf(_c_stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))
        _write_to_null()


def _write_to_null() -> None:
    """Make glibc apply line buffering: it does so only once it has written something."""
    kept, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    _libc.putchar(ord("\n"))
    flush()
    os.dup2(kept, 1)
    os.close(kept)
    os.close(null)


def flush(everything: bool = False) -> None:
    """Flush C's standard output, or every stream: _exit(2) drops their buffers."""
    if everything:
        _libc.fflush(None)
    elif _c_stdout is not None:
        _libc.fflush(_c_stdout)
