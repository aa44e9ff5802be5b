"""xmp's log: ``logging.getLogger("xmp")`` for programs, standard error for people.

xmp does not import ``logging``: a process that has not loaded it has no handler for a record.
Standard error shows warnings and errors as ``xmp: …``. ``XMP_LOG=debug`` (or info, warning, error)
shows all records from that level on, with time and process. xmp does not write what a handler of
the program already writes to standard output or error.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = [
    "VARIABLE", "before_each_line", "debug", "error", "is_of_xmp", "say", "users_frames",
    "warn_caller", "warning",
]  # fmt: skip

VARIABLE = "XMP_LOG"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""The numbers of ``logging``."""
_LAUNCHER = "launcher"

_once: set[str] = set()
_make_room: Callable[[], None] | None = None


def before_each_line(make_room: Callable[[], None]) -> None:
    """Have ``make_room`` called before each line: a status line has to leave its row."""
    global _make_room
    _make_room = make_room


def debug(text: str, *values: Any, process: str = _LAUNCHER) -> None:
    """Log what xmp has decided, and why. ``process`` is the engine's name for this process."""
    if VARIABLE in os.environ or "logging" in sys.modules:
        _record("debug", text, values, process)


def warning(text: str, *values: Any, once: bool = False) -> None:
    """Warn the user; with ``once``, not again in this process with the same values."""
    if once:
        key = text % values if values else text
        if key in _once:
            return
        _once.add(key)
    _record("warning", text, values)


def error(text: str, *values: Any) -> None:
    """Log an error that will not be raised."""
    _record("error", text, values)


def warn_caller(
    text: str, *, category: type[Warning] = RuntimeWarning, beyond: tuple[str, ...] = ()
) -> None:
    """Issue a warning about the program's own line, subject to the filters of ``warnings``.

    ``beyond``: prefixes of the names of modules that may lie between xmp and the program.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and (
        is_of_xmp(frame) or str(frame.f_globals.get("__name__")).startswith(beyond)
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"xmp: {text}", category, stacklevel=level)


def is_of_xmp(frame: FrameType) -> bool:
    """Return whether a frame belongs to xmp and not to the program."""
    module = str(frame.f_globals.get("__name__"))
    return module.startswith("xmp.") or module == "contextlib"  # of which xmp makes decorators


def users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the program's first frame on; None where all frames are xmp's."""
    while traceback is not None and is_of_xmp(traceback.tb_frame):
        traceback = traceback.tb_next
    return traceback


def say(line: str) -> None:
    """Write one line to standard error, if the program has one that takes it."""
    if _make_room is not None:
        _make_room()
    try:
        sys.stderr.write(f"{line}\n")
    except (OSError, ValueError, AttributeError, RuntimeError):
        # stderr is None, closed, or in the middle of another line if a signal handler writes this:
        # what xmp does matters more than the line.
        pass


def _record(name: str, text: str, values: tuple[Any, ...], process: str = _LAUNCHER) -> None:
    level = _LEVELS[name]
    # The copies of the program's handlers in a supervisor are left alone.
    logging = sys.modules.get("logging") if process == _LAUNCHER else None
    find = getattr(logging, "getLogger", None)  # another thread may be importing it
    logger = None if find is None else find("xmp")
    enabled = logger is None or logger.isEnabledFor(level)
    threshold = _threshold()
    visible = level >= threshold if threshold else level >= _LEVELS["warning"] and enabled
    if logger is not None and enabled and logger.hasHandlers():  # else logging would write itself
        logger.log(level, text, *values, stacklevel=3)
        visible = visible and not _is_shown(logger, level)
    if visible:
        head = "xmp"
        if threshold:
            now = time.time()
            clock = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03}"
            head = f"xmp {clock} {process} {os.getpid()} {name.upper()}"
        say(f"{head}: {text % values if values else text}")


def _threshold() -> int:
    """Return the level that the user wants to see; 0 where the variable is not set."""
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return 0
    level = _LEVELS.get(wanted.lower())
    if level is None:
        level = _LEVELS["warning"]
        line = f"xmp: {VARIABLE}={wanted!r}: give debug, info, warning or error"
        if line not in _once:
            _once.add(line)
            say(line)
    return level


def _is_shown(logger: Any, level: int) -> bool:
    """Return whether a handler of the program writes such a record where xmp would write it."""
    standard = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    while logger is not None:
        for handler in logger.handlers:
            console = getattr(handler, "console", None)  # of rich's handler
            stream = getattr(handler, "stream", getattr(console, "file", None))
            if level >= handler.level and stream in standard and stream is not None:
                return True
        logger = logger.parent if logger.propagate else None
    return False
