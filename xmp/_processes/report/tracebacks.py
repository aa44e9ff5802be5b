"""An exception as text of bounded length: the user's frames, without endless repetitions.

Causes, members of a group and notes are included, as in Python's own tracebacks.
"""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from typing import Any

from xmp._processes.system.interpreter import package_folder

__all__ = ["format_error", "message_of", "name_of", "shortened", "with_source"]

_LONGEST_TEXT = 32 * 1024
_LONGEST_MESSAGE = 8 * 1024
_FIRST, _LAST = 20, 30  # frames of a stack that is longer than both together
_LONGEST_CYCLE = 8  # functions that call each other in turn
_PLACE = re.compile(r'([ |]*)File "(.+)", line (\d+), in ')
_REPEATED = 3  # times that a part may follow itself, as in Python's own tracebacks


def format_error(error: BaseException) -> str:
    """Return the traceback from the user's first frame on, with causes, groups and notes."""
    try:
        whole = traceback.TracebackException(type(error), error, error.__traceback__)
        for each in _with_causes(whole):
            each.stack = _ShortStack(_users_frames(each.stack))
            message: Any = getattr(each, "_str", None)  # str() of the exception, in every CPython
            if isinstance(message, str):
                each._str = shortened(message, _LONGEST_MESSAGE)  # type: ignore[attr-defined]
        return shortened("".join(whole.format()), _LONGEST_TEXT)
    except Exception:  # no memory, or a message that is no text
        return f"{name_of(error)}: {shortened(message_of(error), _LONGEST_MESSAGE)}\n"


def name_of(error: BaseException) -> str:
    """Return the name of the exception's class, with its module if that is not obvious.

    The module is left out for built-in classes and those of the script.
    """
    kind = type(error)
    name = kind.__qualname__.rpartition("<locals>.")[2]
    shown = kind.__module__ not in ("builtins", "__main__", "__mp_main__")
    return f"{kind.__module__}.{name}" if shown else name


def message_of(error: BaseException) -> str:
    """Return the exception's message; str() runs code of the user's class, which may raise."""
    try:
        return str(error)
    except BaseException:
        return "(its message cannot be shown)"


def shortened(text: str, most: int) -> str:
    """Return the text; if it has more than ``most`` characters, replace its middle by a count."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n  … {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def with_source(text: str) -> str:
    """Add the source lines of notebook cells, which only the launcher has, to a traceback."""
    lines = text.splitlines()
    for number in range(len(lines) - 1, -1, -1):
        found = _PLACE.match(lines[number])
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if found and not below.startswith(f"{found[1]}  "):
            source = linecache.getline(found[2], int(found[3])).strip()
            if source:
                lines.insert(number + 1, f"{found[1]}  {source}")
    return "\n".join(lines)


def _with_causes(whole: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    waiting = [whole]
    while waiting:
        each = waiting.pop()
        yield each
        behind = [each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())]
        waiting += [other for other in behind if other is not None]


def _users_frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Drop xmp's frames above the user's first one; keep all if none is the user's."""
    frames = list(stack)
    while frames and frames[0].filename.startswith(package_folder):
        frames.pop(0)
    return frames or list(stack)


class _ShortStack(traceback.StackSummary):
    """A stack whose text stays short when a recursion has filled it."""

    def format(self, **options: Any) -> list[str]:
        lines = _folded(super().format(**options))
        left = len(lines) - _FIRST - _LAST
        if left <= 0:
            return lines
        return [*lines[:_FIRST], f"  … {left} frames left out …\n", *lines[-_LAST:]]


def _folded(lines: list[str]) -> list[str]:
    """Show functions that call each other in turn more than three times only once.

    traceback.StackSummary.format folds only a function that calls itself.
    """
    shown: list[str] = []
    at = 0
    while at < len(lines):
        size, times = max(
            ((size, _repetitions(lines, at, size)) for size in range(1, _LONGEST_CYCLE + 1)),
            key=lambda each: each[0] * (each[1] - _REPEATED) if each[1] > _REPEATED else 0,
        )
        if times <= _REPEATED:
            shown.append(lines[at])
            at += 1
            continue
        shown += lines[at : at + size]
        shown.append(f"  [Previous {size} lines repeated {times - 1} more times]\n")
        at += size * times
    return shown


def _repetitions(lines: list[str], at: int, size: int) -> int:
    part, times = lines[at : at + size], 1
    while lines[at + times * size : at + (times + 1) * size] == part:
        times += 1
    return times
