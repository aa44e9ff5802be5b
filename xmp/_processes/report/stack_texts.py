"""The Python stacks of replicas as text: the user's frames, and equal stacks only once."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Mapping
from typing import TypeVar

from xmp._processes.system.interpreter import package_folder
from xmp._words.record import Frame, ranks

from .short_text import short

__all__ = ["crash_stacks", "frames_of", "grouped", "not_in_function", "ranks"]

T = TypeVar("T")
_MOST_FRAMES = 20
_THREAD = re.compile(r"^(?:Current thread|Thread) .*\n", re.MULTILINE)
_PLACE = re.compile(r'File "(.+)", line (\d+) in (.*)')
_FRAMEWORKS = os.path.join(package_folder, "_inside", "frameworks", "")
_REPLICA = os.path.join(package_folder, "_processes", "replica", "")
_RUN = tuple(f"{_REPLICA}{name}.py" for name in ("replica_main", "calling", "staying"))
_ENDS = (" in run", " in called", " in stay")


def _frames(stacks: str) -> list[str]:
    """Return the main thread's frames, innermost first; or why the process did not answer."""
    main = _THREAD.split(stacks)[-1]  # faulthandler writes the oldest thread last
    return [line.strip() for line in main.splitlines() if line.strip()]


def crash_stacks(stacks: str) -> str:
    """Return faulthandler's text of a native crash, with the user's frames of every thread."""
    text, _, _ = stacks.partition("\nExtension modules:")  # hundreds, in one line
    heads = [*_THREAD.finditer(text)]
    if not heads:
        return text.strip()
    parts = [text[: heads[0].start()].strip()]
    for head, end in zip(heads, [*(h.start() for h in heads[1:]), len(text)], strict=True):
        lines = [line.rstrip() for line in text[head.end() : end].splitlines() if line.strip()]
        parts.append("\n".join([head[0].rstrip(), *_shortened(_replicas_frames(lines))]))
    return "\n\n".join(filter(None, parts))


def frames_of(stacks: str) -> tuple[Frame, ...]:
    """Return the main thread's frames of a replica, innermost first."""
    found = map(_PLACE.match, _replicas_frames(_frames(stacks)))
    return tuple(Frame(each[1], int(each[2]), each[3]) for each in found if each)


def _file(frame: str) -> str:
    return frame[6:].partition('"')[0] if frame.startswith('File "') else ""


def grouped(
    stacks: Mapping[int, str], with_lines: bool = False, whole: str | None = None
) -> list[str]:
    """Return the main threads' stacks from the user's function on, one text for equal ones.

    ``with_lines``: show the source line below each frame, if this process has it. ``whole``: leave
    out most library frames, and say that this has them ("": say nothing). None: keep all.
    """

    def frames(text: str) -> tuple[str, ...]:
        users = _users_frames(_replicas_frames(_frames(text)))
        return tuple(_shortened(_without_libraries(users, whole)))

    shown = {rank: frames(text) for rank, text in stacks.items()}
    return [
        "\n  ".join([f"{group}:", *map(_with_line if with_lines else str, lines)])
        for lines, group in _alike(shown).items()
    ]


def _with_line(frame: str) -> str:
    """Return a frame in faulthandler's form with its source line; the launcher has cells' lines."""
    found = _PLACE.match(frame)
    line = linecache.getline(found[1], int(found[2])).strip() if found else ""
    return f"{frame}\n    {line}" if line else frame


def _alike(by_rank: Mapping[int, T]) -> dict[T, str]:
    """Return each value once, with the ranks that have it."""
    groups: dict[T, list[int]] = {}
    for rank, value in by_rank.items():
        groups.setdefault(value, []).append(rank)
    return {value: ranks(group) for value, group in groups.items()}


def _replicas_frames(lines: list[str]) -> list[str]:
    """Drop the supervisor's frames: a fork has the whole stack of its parents below its own."""
    frames = [line.strip() for line in lines]
    ends = [n for n, at in enumerate(frames) if _file(at) in _RUN and at.endswith(_ENDS)]
    return lines[: ends[0]] if ends and ends[0] else lines


def _users_frames(lines: list[str]) -> list[str]:
    """Drop xmp's frames below the user's, such as those of loading an argument."""
    files = [_file(line) for line in lines]
    users = [n for n, file in enumerate(files) if file and not file.startswith(package_folder)]
    # An import has about four importlib frames for each of the user's.
    return [
        line
        for line in (lines[: users[-1] + 1] if users else lines)
        if not _file(line).startswith("<frozen importlib")
    ]


def _without_libraries(lines: list[str], whole: str | None) -> list[str]:
    if whole is None:
        return lines
    return short("\n".join(lines), whole, latest_last=False).splitlines()


def _shortened(lines: list[str]) -> list[str]:
    left = len(lines) - _MOST_FRAMES
    return lines if left <= 0 else [*lines[:_MOST_FRAMES], f"… {left} more frames"]


def not_in_function(stacks: Mapping[int, str], count: int, waited: int) -> str:
    """Return a line about the replicas, of ``count``, that are not in the function yet.

    ``waited``: nanoseconds since the call.
    """
    phases = _alike({rank: _phase(text) for rank, text in stacks.items()})
    places = "; ".join(f"{group}: {phase}" for phase, group in phases.items())
    some = f"{len(stacks)} of {count} replicas"
    return f"xmp: after {waited / 1e9:g} s {some} have not reached the function: {places}\n"


def _phase(stacks: str) -> str:
    """Return what a replica is doing before the user's function, and in which line."""
    lines = _replicas_frames(_frames(stacks))
    files = [_file(line) for line in lines]
    place = next((line for line in lines if _file(line) and "<frozen" not in line), "")
    if not place:
        return f"starting ({lines[0] if lines else 'no stack'})"
    if any("<frozen importlib" in file for file in files):
        doing = "importing"
    elif any(file.startswith(_FRAMEWORKS) for file in files):
        doing = "starting the runtime and joining the others"
    elif any(file.startswith(f"{package_folder}_payload{os.sep}") for file in files):
        doing = "loading the function and its arguments"
    else:
        doing = "starting"
    return f"{doing} ({place})"
