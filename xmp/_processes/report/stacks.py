"""The Python stacks of replicas: how they are taken, and how they are told briefly."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

__all__ = ["Asked", "crash", "frames", "grouped", "phase", "phases", "ranks", "take"]

_WAIT = 0.5
_STEP = 0.002
_MOST_FRAMES = 20
_THREAD = re.compile(r"^(?:Current thread|Thread) .*\n", re.MULTILINE)
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RUN = os.path.join(_OURS, "_processes", "replica.py")


class Asked(Protocol):
    """Who can be asked for its stacks."""

    @property
    def rank(self) -> int: ...

    pid: int
    stacks: int
    ended: bool

    def ask_stacks(self) -> int:
        """Ask; returns the size of what was there before."""

    def answered(self, asked: int) -> str:
        """What was written since then."""


def take(members: Iterable[Asked]) -> dict[int, str]:
    """The stacks of those that live, within half a second, by rank.

    faulthandler writes them from a signal handler, in C, also while Python is stuck. Nothing
    says that a dump is complete: it is when the file has grown and then stays as it is.
    """
    asked = {member: member.ask_stacks() for member in members if not member.ended}
    sizes = dict.fromkeys(asked, -1)
    end = time.monotonic() + _WAIT
    while time.monotonic() < end:
        now = {member: os.fstat(member.stacks).st_size for member in asked}
        if all(now[m] == sizes[m] and now[m] > asked[m] for m in asked):
            break
        sizes = now
        time.sleep(_STEP)
    return {m.rank: m.answered(start) or _from_proc(m.pid) for m, start in asked.items()}


def _from_proc(pid: int) -> str:
    """What /proc says of a process that did not answer."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        with open(f"/proc/{pid}/wchan") as file:
            place = file.read().strip() or "?"
    except OSError:
        return "ended before it answered\n"
    words = {"T": "stopped", "t": "stopped by a debugger", "D": "in an uninterruptible call"}
    return f"no answer: {words.get(state, f'state {state}')}, kernel function {place}\n"


# --- telling them briefly ----------------------------------------------------------------------


def frames(stacks: str) -> list[str]:
    """The main thread's frames, innermost first; the words of who did not answer."""
    main = _THREAD.split(stacks)[-1]  # faulthandler writes the oldest thread last
    return [line.strip() for line in main.splitlines() if line.strip()]


def crash(stacks: str) -> str:
    """What faulthandler wrote of a native crash: the user's frames of every thread."""
    told, _, _ = stacks.partition("\nExtension modules:")  # hundreds, in one line
    heads = [*_THREAD.finditer(told)]
    if not heads:
        return told.strip()
    parts = [told[: heads[0].start()].strip()]
    for head, end in zip(heads, [*(h.start() for h in heads[1:]), len(told)], strict=True):
        lines = [line.rstrip() for line in told[head.end() : end].splitlines() if line.strip()]
        parts.append("\n".join([head[0].rstrip(), *_shortened(_users_part(lines))]))
    return "\n\n".join(filter(None, parts))


def _file(frame: str) -> str:
    return frame[6:].partition('"')[0] if frame.startswith('File "') else ""


def grouped(stacks: Mapping[int, str]) -> list[str]:
    """The main threads' stacks, from the user's function on; ranks with the same one together."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, text in stacks.items():
        lines = _without_callers(_users_part(frames(text)))
        alike.setdefault(tuple(_shortened(lines)), []).append(rank)
    return ["\n  ".join([f"{ranks(group)}:", *lines]) for lines, group in alike.items()]


def _users_part(lines: list[str]) -> list[str]:
    """Without what called the replica: a fork has the whole stack of its parents below it."""
    ends = [n for n, line in enumerate(lines) if _is_run(line.strip())]
    return lines[: ends[0]] if ends and ends[0] else lines


def _without_callers(lines: list[str]) -> list[str]:
    """Without frames of ours below the user's own, as while an argument is loaded."""
    users = [n for n, line in enumerate(lines) if _file(line) and not _file(line).startswith(_OURS)]
    return lines[: users[-1] + 1] if users else lines


def _is_run(frame: str) -> bool:
    return _file(frame) == _RUN and frame.endswith(" in run")


def _shortened(lines: list[str]) -> list[str]:
    left = len(lines) - _MOST_FRAMES
    return lines if left <= 0 else [*lines[:_MOST_FRAMES], f"… {left} more frames"]


def phases(stacks: Mapping[int, str]) -> list[str]:
    """Where those are that have not reached the user's function; equal ones together."""
    alike: dict[str, list[int]] = {}
    for rank, text in stacks.items():
        alike.setdefault(phase(text), []).append(rank)
    return [f"{ranks(group)}: {words}" for words, group in alike.items()]


def phase(stacks: str) -> str:
    """Where a replica is that has not reached the user's function, and in which line."""
    lines = _users_part(frames(stacks))
    files = [_file(line) for line in lines]
    place = next((line for line in lines if _file(line) and "<frozen" not in line), "")
    if not place:
        return f"starting ({lines[0] if lines else 'no stack'})"
    if any("<frozen importlib" in file for file in files):
        doing = "importing"
    elif any(file.startswith(f"{_OURS}_frameworks{os.sep}") for file in files):
        doing = "starting the runtime and joining the others"
    elif any(file.startswith(f"{_OURS}_payload{os.sep}") for file in files):
        doing = "loading the function and its arguments"
    else:
        doing = "starting"
    return f"{doing} ({place})"


def ranks(numbers: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(numbers):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank {words}" if sum(map(len, runs)) == 1 else f"ranks {words}"
