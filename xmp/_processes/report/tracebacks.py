"""An exception as text that a person can read: the user's frames, what repeats once, all bounded.

Its causes, the members of a group and the notes are part of it, as Python itself shows them.
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any

__all__ = ["cut", "name_of", "told", "with_source", "words_of"]

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TEXT = 32 * 1024
_MESSAGE = 8 * 1024
_FIRST, _LAST = 20, 30  # frames of a stack that is longer than both together
_CYCLE = 8  # functions that call each other in turn
_PLACE = re.compile(r'([ |]*)File "(.+)", line (\d+), in ')
_SHOWN = 3  # times that a repeated part is shown; as in Python's own tracebacks


def told(error: BaseException) -> str:
    """The traceback from the user's first frame on, with causes, groups and notes."""
    try:
        whole = traceback.TracebackException(type(error), error, error.__traceback__)
        for each in _all_of(whole):
            each.stack = _Readable(_users_part(each.stack))
            text: Any = getattr(each, "_str", None)  # what Python has taken its message for
            if isinstance(text, str):
                each._str = cut(text, _MESSAGE)  # type: ignore[attr-defined]
        return cut("".join(whole.format()), _TEXT)
    except Exception:  # no memory, a message that is no text: what can still be said
        return f"{name_of(error)}: {cut(words_of(error), _MESSAGE)}\n"


def name_of(error: BaseException) -> str:
    """The name of its class, with the module where that tells something."""
    kind = type(error)
    name = kind.__qualname__.rpartition("<locals>.")[2]
    shown = kind.__module__ not in ("builtins", "__main__", "__mp_main__")
    return f"{kind.__module__}.{name}" if shown else name


def words_of(error: BaseException) -> str:
    """Its message; code of the user's is asked for it, which may fail."""
    try:
        return str(error)
    except BaseException:
        return "(its message cannot be shown)"


def cut(text: str, most: int) -> str:
    """The text with its middle left out if it is longer than that, and how much that was."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n  … {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def with_source(text: str) -> str:
    """The traceback with the lines of notebook cells, which only the launcher has."""
    lines = text.splitlines()
    for number in range(len(lines) - 1, -1, -1):
        found = _PLACE.match(lines[number])
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if found and not below.startswith(f"{found[1]}  "):
            source = linecache.getline(found[2], int(found[3])).strip()
            if source:
                lines.insert(number + 1, f"{found[1]}  {source}")
    return "\n".join(lines)


def _all_of(whole: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    waiting = [whole]
    while waiting:
        each = waiting.pop()
        yield each
        behind = [each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())]
        waiting += [other for other in behind if other is not None]


def _users_part(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Without the frames of ours that have called the user's first one, if there is such a one."""
    frames = list(stack)
    while frames and frames[0].filename.startswith(_OWN_FOLDER):
        frames.pop(0)
    return frames or list(stack)


class _Readable(traceback.StackSummary):
    """A stack whose text stays readable when a recursion has filled it."""

    def format(self, **options: Any) -> list[str]:
        lines = _folded(super().format(**options))
        left = len(lines) - _FIRST - _LAST
        if left <= 0:
            return lines
        return [*lines[:_FIRST], f"  … {left} frames left out …\n", *lines[-_LAST:]]


def _folded(lines: list[str]) -> list[str]:
    """Functions that call each other in turn are shown three times; Python folds one alone."""
    found: list[str] = []
    at = 0
    while at < len(lines):
        size, times = max(
            ((size, _times(lines, at, size)) for size in range(1, _CYCLE + 1)),
            key=lambda each: each[0] * (each[1] - _SHOWN) if each[1] > _SHOWN else 0,
        )
        if times <= _SHOWN:
            found.append(lines[at])
            at += 1
            continue
        found += lines[at : at + size * _SHOWN]
        found.append(f"  [Previous {size} lines repeated {times - _SHOWN} more times]\n")
        at += size * times
    return found


def _times(lines: list[str], at: int, size: int) -> int:
    part, times = lines[at : at + size], 1
    while lines[at + times * size : at + (times + 1) * size] == part:
        times += 1
    return times
