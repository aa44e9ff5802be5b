"""Tracebacks and stacks shortened for people, without most library frames; the record has all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from xmp._processes.system.interpreter import package_folder

__all__ = ["library_of", "short"]

_FRAME = re.compile(r'([ |]*)File "(.+)", line \d+,? in ')
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(\w+)|.*/lib/python3\.\d+/|<frozen ")
_MARKS = re.compile(r"[ |]*[~^]+\s*")
_MOST_FRAMES, _FIRST_FRAMES, _LAST_FRAMES = 12, 4, 7
_MOST_LINES, _FIRST_LINES, _LAST_LINES = 14, 8, 3

_Frame = list[str]
"""The line that names a frame's place, and the lines below that belong to it."""


def short(text: str, whole: str = "", latest_last: bool = True) -> str:
    """Shorten the text: one line stands for the library frames between those of the program.

    Of the library frames at the end of a stack, in which the error was raised, the innermost stays.
    The middle of a long message is left out. ``whole`` names the place of the whole text, for the
    first such line.
    """
    parts: list[str] = []
    for is_stack, group in groupby(_pieces(text.splitlines()), lambda piece: len(piece[0]) > 0):
        pieces = [lines for _, lines in group]
        parts += _stack(pieces, latest_last) if is_stack else _message([p[0] for p in pieces])
    lines = "\n".join(parts)
    return lines.replace(" left out", f" left out ({whole} has all)", 1) if whole else lines


def _pieces(lines: Sequence[str]) -> Iterator[tuple[str, _Frame]]:
    """Yield ("frame", its lines) for each frame and ("", [line]) for each other line."""
    at = 0
    while at < len(lines):
        found, end = _FRAME.match(lines[at]), at + 1
        while found and end < len(lines) and lines[end].startswith(f"{found[1]}  "):
            if _FRAME.match(lines[end]) or lines[end].lstrip(" |").startswith("["):
                break
            end += 1
        yield "frame" if found else "", list(lines[at:end])
        at = end


def _stack(frames: Sequence[_Frame], latest_last: bool) -> list[str]:
    order = frames if latest_last else frames[::-1]
    shown: list[_Frame] = []
    for library, group in groupby(order, lambda frame: bool(_library(frame))):
        run = list(group)
        is_innermost = run[-1] is order[-1]
        kept = [_unmarked(run[-1])] if library and is_innermost else []
        rest = run[: len(run) - len(kept)]
        if library and len(rest) > 1:
            shown.append(_left_out(rest, latest_last))
        else:
            shown += map(_unmarked, rest) if library else rest
        shown += kept
    left = len(shown) - _FIRST_FRAMES - _LAST_FRAMES
    if len(shown) > _MOST_FRAMES:
        indent = _indent(shown[0])
        middle = [[f"{indent}… {left} frames left out"]]
        shown = [*shown[:_FIRST_FRAMES], *middle, *shown[-_LAST_FRAMES:]]
    return [line for frame in (shown if latest_last else shown[::-1]) for line in frame]


def _library(frame: _Frame) -> str:
    found = _FRAME.match(frame[0])
    return library_of(found[2]) if found else ""


def library_of(place: str) -> str:
    """Return the library that a file belongs to; "" for a file of the program."""
    if place.startswith(package_folder):
        return "xmp"
    installed = _INSTALLED.match(place)
    return "" if installed is None else installed[1] or "Python"


def _left_out(frames: Sequence[_Frame], latest_last: bool) -> _Frame:
    names = dict.fromkeys(map(_library, frames if latest_last else frames[::-1]))
    return [f"{_indent(frames[0])}… {len(frames)} frames of {', '.join(names)} left out"]


def _indent(frame: _Frame) -> str:
    return frame[0][: len(frame[0]) - len(frame[0].lstrip(" |"))]


def _unmarked(frame: _Frame) -> _Frame:
    return [line for line in frame if not _MARKS.fullmatch(line)]


def _message(lines: list[str]) -> list[str]:
    left = len(lines) - _FIRST_LINES - _LAST_LINES
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[:_FIRST_LINES], f"  … {left} lines left out", *lines[-_LAST_LINES:]]
