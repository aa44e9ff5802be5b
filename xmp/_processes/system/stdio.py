"""Standard input, output and error: Python's objects, C's buffers, duplicates for others."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

__all__ = ["buffer_lines", "flush", "flush_c", "standard_streams", "take_streams"]

_UNBUFFERED = getattr(sys.__stdout__, "write_through", False)
"""Whether this interpreter, or the one that it was forked from, has -u or PYTHONUNBUFFERED."""
_LINE_BUFFERED = 1  # _IOLBF of setvbuf(3)


def flush() -> list[str]:
    """Flush Python's standard output and error. Return what could not be written.

    The streams of the start are flushed too: os._exit loses the data of a stream that the program
    has replaced.
    """
    lost: list[str] = []
    streams = {id(s): s for s in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}
    for stream in streams.values():
        try:
            if stream is not None:
                stream.flush()
        except (BrokenPipeError, ValueError, AttributeError):
            pass  # the reader has gone, the program has closed it, or it has no flush
        except Exception as error:  # a stream of the program's may raise anything
            lost.append(f"{type(error).__name__}: {error}")
    return lost


def standard_streams(reads: bool = False) -> list[int]:
    """Return descriptors for another process: /dev/null, duplicates of standard output and error.

    A stream that the launcher has closed becomes /dev/null. Replicas read nothing, as in
    multiprocessing: several would take each other's input. With ``reads``, the first one is a
    duplicate of standard input.
    """
    descriptors = [] if reads else [os.open(os.devnull, os.O_RDWR)]
    for number in range(len(descriptors), 3):
        try:
            descriptors.append(os.dup(number))
        except OSError:
            descriptors.append(os.open(os.devnull, os.O_RDWR))
    return descriptors


def take_streams(descriptors: list[int]) -> None:
    """Put the launcher's standard streams in place, with new Python objects.

    The template's own objects have the buffering and the encoding of its start.
    """
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # A launcher without standard streams has None for them.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    errors = getattr(sys.stdout, "errors", None) or "strict"
    streams: Any = sys
    reopen: Any = functools.partial(open, closefd=False)
    streams.stdin = streams.__stdin__ = reopen(0, encoding=encoding)
    # print() writes text and line end separately: without any buffer the lines of several replicas
    # would be mixed.
    buffering = 1 if _UNBUFFERED else -1
    streams.stdout = streams.__stdout__ = reopen(
        1, "w", buffering=buffering, encoding=encoding, errors=errors
    )
    streams.stderr = streams.__stderr__ = reopen(
        2, "w", buffering=1, encoding=encoding, errors="backslashreplace"
    )


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
        flush_c()
        _libc.setvbuf(_c_stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))
        _write_to_null()


def _write_to_null() -> None:
    """Make glibc apply line buffering: it does so only once it has written something."""
    kept, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    _libc.putchar(ord("\n"))
    flush_c()
    os.dup2(kept, 1)
    os.close(kept)
    os.close(null)


def flush_c(everything: bool = False) -> None:
    """Flush C's standard output, or every stream: _exit(2) drops their buffers."""
    if everything:
        _libc.fflush(None)
    elif _c_stdout is not None:
        _libc.fflush(_c_stdout)
