"""Where the time of a start went, replica by replica, and how to look at it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

__all__ = ["StartAccount", "Timeline"]

SLOW_SECONDS = 5.0
_STAGES = (
    ("received", "template and supervisor up"),
    ("loaded", "script and call loaded"),
    ("forked", "waiting for its fork"),
    ("born", "process made"),
    ("ready", "call loaded there, framework entered"),
    ("entered", "rendezvous and own imports"),
    ("left", "the function"),
)


@dataclass
class Timeline:
    """When one replica got where: monotonic nanoseconds, 0 where it never did.

    ``called`` in the launcher, ``received`` to ``forked`` in the supervisor, the rest inside.
    """

    called: int = 0
    received: int = 0
    loaded: int = 0
    forked: int = 0
    born: int = 0
    ready: int = 0
    entered: int = 0
    left: int = 0

    def seconds(self) -> dict[str, float]:
        """Seconds since the call for every stage that was reached."""
        return {
            name: (getattr(self, name) - self.called) / 1e9
            for name, _ in _STAGES
            if getattr(self, name)
        }

    def completed(self, known: Timeline) -> Timeline:
        """With the stages that only the other one has."""
        names = [field.name for field in fields(self)]
        return Timeline(*(getattr(self, name) or getattr(known, name) for name in names))

    def stages(self) -> list[tuple[str, int, int]]:
        """(what, from, to) in nanoseconds for every stage that was reached."""
        found, before = [], self.called
        for name, words in _STAGES:
            if getattr(self, name):
                found.append((words, before, getattr(self, name)))
                before = getattr(self, name)
        return found


class StartAccount(Mapping[int, Timeline]):
    """The timelines of one launch by rank; ``imports`` has the template's slowest ones.

    ``imports`` holds (module, seconds) and is empty when the template was warm.
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

    def last_entered(self) -> float:
        """Seconds from the call until the last replica was in the function; 0.0 if none was."""
        return max((t.seconds().get("entered", 0.0) for t in self.values()), default=0.0)

    def largest(self, count: int = 3) -> list[tuple[str, float]]:
        """The largest items of the start, in seconds: stages of the last replica, imports."""
        if not self._ranks:
            return []
        last = max(self.values(), key=lambda timeline: timeline.entered)
        items = [(what, (to - since) / 1e9) for what, since, to in last.stages()[:-1]]
        items += [(f"import {module}", seconds) for module, seconds in self.imports]
        return sorted(items, key=lambda item: -item[1])[:count]

    def slow(self) -> str:
        """One line for a start that took longer than 5 s, else nothing."""
        total = self.last_entered()
        if total < SLOW_SECONDS:
            return ""
        items = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.largest())
        return f"xmp: the start took {total:.1f} s: {items}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Chrome trace (chrome://tracing, Perfetto): one row per rank."""
        events = [
            {"name": what, "ph": "X", "pid": "xmp", "tid": f"rank {rank}",
             "ts": since / 1e3, "dur": (to - since) / 1e3}
            for rank, timeline in self.items()
            for what, since, to in timeline.stages()
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events}))
