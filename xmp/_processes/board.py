"""What the live view shows of a start, as lines for a terminal: made with rich."""

from __future__ import annotations

import io
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .progress import PHASES
from .stacks import ranks

__all__ = ["drawn"]

_MOST_LINES = 16
_SLOWEST = 6
_STYLES = {"running": "green", "done": "green", "failed": "red", "joining": "cyan"}


def drawn(
    title: str,
    phases: Mapping[int, tuple[str, float]],
    notes: Mapping[int, str],
    size: tuple[int, int],
) -> list[str]:
    """A title, then a line for each replica, or for each phase where they are many.

    ``phases`` has, by rank, the phase and for how many seconds; ``size`` the columns and rows.
    """
    width, height = size
    table = Table.grid(padding=(0, 2))
    for _ in range(4):
        table.add_column(no_wrap=True)
    if len(phases) <= min(_MOST_LINES, height - 1):
        for rank, (phase, seconds) in phases.items():
            table.add_row(f"  rank {rank}", _styled(phase), f"{seconds:.1f} s", notes.get(rank, ""))
    else:
        for phase, there in _by_phase(phases).items():
            table.add_row(f"  {len(there)}", _styled(phase), _slowest(there))
    return [*_lines(Text(title, style="bold"), width), *_lines(table, width)]


def _styled(phase: str) -> Text:
    return Text(phase, style=_STYLES.get(phase, "yellow"))


def _by_phase(phases: Mapping[int, tuple[str, float]]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for rank, (phase, seconds) in phases.items():
        found.setdefault(phase, {})[rank] = seconds
    return dict(sorted(found.items(), key=lambda item: PHASES.index(item[0])))


def _slowest(there: Mapping[int, float]) -> str:
    longest = sorted(there, key=lambda rank: (-there[rank], rank))[:_SLOWEST]
    more = ", …" if len(there) > len(longest) else ""
    return f"{ranks(longest)}{more}  {there[longest[0]]:.1f} s"


def _lines(thing: Text | Table, width: int) -> list[str]:
    buffer = io.StringIO()
    Console(file=buffer, force_terminal=True, width=width, legacy_windows=False).print(
        thing, no_wrap=True, overflow="ellipsis", crop=True
    )
    return buffer.getvalue().splitlines()
