"""Where the time of a start went, replica by replica."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

__all__ = ["StartTimeline", "Timeline", "slow_start"]

_MOST_RANKS = 16
_SHORTEST = 0.1
"""Seconds of the shortest part that is mentioned."""
_SLOW_SECONDS = 5.0
_UP = "template and supervisor up"
_FUNCTION = "the function"
_STAGES = (
    ("received", _UP),
    ("loaded", "script and call loaded"),
    ("forked", "waiting for its fork"),
    ("born", "process made"),
    ("ready", "call loaded there, framework entered"),
    ("entered", "rendezvous and own imports"),
    ("left", _FUNCTION),
)


@dataclass(repr=False)
class Timeline:
    """The times at which one replica reached each stage of its start.

    All are monotonic nanoseconds, 0 for a stage that was not reached.

    Attributes:
        called: The user's call.
        received: The supervisor is up.
        loaded: The supervisor has loaded the script and the function.
        forked: The supervisor forks this replica.
        born: The replica runs.
        ready: The replica has entered its framework.
        entered: The user's function begins.
        left: The user's function has ended.
    """

    called: int = 0
    received: int = 0
    loaded: int = 0
    forked: int = 0
    born: int = 0
    ready: int = 0
    entered: int = 0
    left: int = 0

    def __repr__(self) -> str:
        stages = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in self.seconds().items())
        return f"Timeline({stages})"

    def seconds(self) -> dict[str, float]:
        """Return the seconds from the call to each stage that was reached, by name."""
        reached = {name: getattr(self, name) for name, _ in _STAGES}
        return {name: (at - self.called) / 1e9 for name, at in reached.items() if at}

    def completed(self, known: Timeline) -> Timeline:
        """Return this timeline, with missing stages taken from ``known``."""
        names = [field.name for field in fields(self)]
        return Timeline(*(getattr(self, name) or getattr(known, name) for name in names))

    def stages(self) -> list[tuple[str, int, int]]:
        """Return (description, start, end), in nanoseconds, of each stage that was reached."""
        found, before = [], self.called
        for name, words in _STAGES:
            if at := getattr(self, name):
                found.append((words, before, at))
                before = at
        return found


class StartTimeline(Mapping[int, Timeline]):
    """The timelines of one launch, by rank. ``print`` shows them as a table.

    Attributes:
        imports: (module, seconds) of the template's slowest imports; empty if the template was
            there before the launch.
    """

    def __init__(
        self, ranks: Mapping[int, Timeline], imports: tuple[tuple[str, float], ...] = ()
    ) -> None:
        self._ranks = dict(sorted(ranks.items()))
        self.imports = imports

    def __getitem__(self, rank: int) -> Timeline:
        return self._ranks[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __repr__(self) -> str:
        """Return a table of the seconds from the call to each stage, with a line for each rank."""
        names = [name for name, _ in _STAGES]
        lines = ["seconds since the call", "  ".join(["rank", *(f"{n:>8}" for n in names)])]
        for rank, timeline in list(self.items())[:_MOST_RANKS]:
            known = timeline.seconds()
            cells = [f"{known[name]:8.3f}" if name in known else f"{'-':>8}" for name in names]
            lines.append("  ".join([f"{rank:4}", *cells]))
        if len(self) > _MOST_RANKS:
            lines.append(f"and {len(self) - _MOST_RANKS} more ranks")
        return "\n".join(lines)

    def last_entered(self) -> float:
        """Return the seconds from the call to the last replica's function; 0.0 if none entered."""
        return max((t.seconds().get("entered", 0.0) for t in self.values()), default=0.0)

    def largest(self, count: int = 3) -> list[tuple[str, float]]:
        """Return the longest parts of the start: stages of the last replica, and imports.

        Args:
            count: The largest number of parts.

        Returns:
            (description, seconds) of each, the longest first.
        """
        if not self._ranks:
            return []
        last = max(self.values(), key=lambda timeline: timeline.entered)
        stages = [stage for stage in last.stages() if stage[0] != _FUNCTION]
        items = [(what, (to - since) / 1e9) for what, since, to in stages]
        items += [
            (f"import {module}", seconds)
            for module, seconds in self.imports
            if not module.startswith("xmp.")  # its time is that of the modules that it imports
        ]
        return sorted(items, key=lambda item: -item[1])[:count]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Chrome trace (chrome://tracing, Perfetto) with one row per rank.

        Args:
            path: The file to write, as JSON.
        """
        events = [
            {"name": what, "ph": "X", "pid": "xmp", "tid": f"rank {rank}",
             "ts": since / 1e3, "dur": (to - since) / 1e3}
            for rank, timeline in self.items()
            for what, since, to in timeline.stages()
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events}))


def slow_start(timeline: StartTimeline, program: bool = False) -> str:
    """Return a line with the largest parts of a start that took longer than 5 s, else "".

    A ``program`` that replicas run as a whole has no place for a ``xmp.preload()`` before its
    launch, so the line does not advise it.
    """
    total = timeline.last_entered()
    if total < _SLOW_SECONDS:
        return ""
    largest = [(what, seconds) for what, seconds in timeline.largest() if seconds >= _SHORTEST]
    sharing = "all replicas" if program else "later launches"
    plain = {_UP: f"imports that {sharing} share"}  # in the template; the rest is milliseconds
    parts = [(plain.get(what, what), f"{seconds:.1f} s") for what, seconds in largest]
    stages = ", ".join(" ".join(part) for part in parts if not part[0].startswith("import "))
    imports = ", ".join(" ".join(part) for part in parts if part[0].startswith("import "))
    said = f"the start took {total:.1f} s: {stages}" + (f" (in it: {imports})" if imports else "")
    if program or largest[0][0] != _UP:
        return said
    return (
        f'{said}. To begin them earlier, put xmp.preload("torch"), with the packages that the '
        "program imports, at its top"
    )
