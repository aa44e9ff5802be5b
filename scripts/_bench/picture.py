"""The pictures of a run: what a user waits for, 1 to 256 replicas, and memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cases import COUNTS
from figures import Figures, Key

sys.path.append(str(Path(__file__).parents[1] / "_pictures"))
from svg import WIDTH, Picture

TICKS = {0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s", 10.0: "10 s"}
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Shown:
    """One group of bars: its words, in one line or two, and what stands in them."""

    words: str
    case: str
    systems: str
    """xmp, its peer, the floor if there is one"""
    what: str = "seconds"
    floor: str = "floor"
    """What the floor's bar is called."""

    @property
    def keys(self) -> list[Key]:
        return [(self.case, system, self.what) for system in self.systems.split()]

    def bars(self, figures: Figures) -> Iterable[tuple[str, str, float]]:
        """Give look, name and figure of each bar."""
        xmp, peer, *floor = self.keys
        yield "xmp", "xmp", figures.median(xmp)
        yield "peer", peer[1], figures.median(peer)
        for key in filter(figures.has, floor):
            yield "floor", self.floor, figures.median(key)


TIMES = (
    Shown("first spawn of a script|that imported torch", "first", "xmp torch"),
    Shown('first spawn, xmp.preload("torch")|on the first line', "first", "xmp-preload torch"),
    Shown("second and later spawn|of a script", "second", "xmp torch floor"),
    Shown("until the first all-reduce|is done (gloo), warm", "reduce", "xmp torch floor"),
    Shown("until the first all-gather|is done (JAX), warm", "jax", "xmp multiprocessing floor"),
    Shown("with an argument of 512 MB,|warm", "array", "xmp torch"),
    Shown(
        "whole script with one all-reduce,|process start to end",
        "script",
        "xmp torch single",
        floor="one process, no spawn",
    ),
    Shown(
        "second launch over Ray,|4 replicas, until all-reduce",
        "ray",
        "xmp TorchTrainer",
        what="seconds@second",
    ),
)
MEMORY = (
    Shown("private memory|of 8 replicas", "memory", "xmp torch floor", "private"),
    Shown("all processes of the launch|(PSS)", "memory", "xmp torch floor", "pss of tree"),
    Shown("8 replicas that share|a 512 MB argument (PSS)", "array", "xmp torch", "pss"),
)
NAMES = {"xmp": "xmp", "peer": "the peer named", "floor": "floor: a loop of os.fork"}
LEFT, TOP, BAR, GAP = 250, 62, 16, 14
"""Where bars begin; the height of a bar's line, and between two groups."""


def seconds(value: float) -> str:
    """Give three digits, so that a figure can be found in the table."""
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.0f} ms"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB"


def times(figures: Figures, cores: int) -> Picture | None:
    """Draw what a user waits for, on a logarithmic axis; None where nothing of it was measured."""
    picture = Picture("Seconds of eight things that a user waits for: xmp, its peers and the floor")
    rows = [row for row in TIMES if figures.has(*row.keys[:2])]
    picture.text(20, 28, f"What you wait for: 8 replicas on {cores} cores", size=15, bold=True)

    most = max([30.0, *(value for row in rows for _, _, value in row.bars(figures))])

    def scale(value: float) -> float:
        return LEFT + 310 * math.log10(max(value, 0.01) / 0.01) / math.log10(most / 0.01)

    bottom = _groups(picture, rows, figures, scale, seconds)
    grid = Picture("")
    for value, words in [*TICKS.items()][1:]:
        picture.text(scale(value), bottom + 18, words, "muted", 12, "middle")
        grid.path([(scale(value), TOP), (scale(value), bottom)], "grid")
    picture.text(20, bottom + 18, "logarithmic axis, medians", "muted", 12)
    picture.height = bottom + 34
    return picture.over(grid) if rows else None


def memory(figures: Figures, _: int) -> Picture | None:
    """Draw what a launch takes, as bars from zero."""
    picture = Picture("Memory of a launch of eight replicas: xmp, torch and the floor")
    rows = [row for row in MEMORY if figures.has(*row.keys[:2])]
    picture.text(20, 28, "Memory of 8 replicas that have imported torch", size=15, bold=True)
    most = max((value for row in rows for _, _, value in row.bars(figures)), default=1.0)

    def scale(value: float) -> float:
        return LEFT + 310 * value / most

    bottom = _groups(picture, rows, figures, scale, megabytes)
    picture.text(20, bottom + 12, "bars from zero, medians", "muted", 12)
    picture.height = bottom + 28
    return picture if rows else None


def _groups(
    picture: Picture,
    rows: list[Shown],
    figures: Figures,
    scale: Scale,
    shown: Callable[[float], str],
) -> float:
    """Draw a group of bars for each row; return the y below the last one."""
    _legend(picture, {look for row in rows for look, _, _ in row.bars(figures)})
    y = TOP + 8
    for row in rows:
        bars = [*row.bars(figures)]
        for line, words in enumerate(row.words.split("|")):
            picture.text(20, y + 11 + 17 * line, words)
        for line, (look, name, value) in enumerate(bars):
            _bar(picture, look, y + line * BAR, scale(value))
            label = f"{name} {shown(value)}"
            if look == "peer":
                label += f"  ({_times(value / bars[0][2])})"
            picture.text(
                scale(value) + 11, y + 12 + line * BAR, label, look, 12, bold=look == "xmp"
            )
        y += BAR * max(len(bars), 2) + GAP
    return y


def _bar(picture: Picture, look: str, y: float, end: float) -> None:
    picture.rect(LEFT, y + 6, max(end - LEFT, 1), 4, look)
    picture.mark(look, end, y + 8)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.2f}×"  # as in the table


def _legend(picture: Picture, looks: set[str]) -> None:
    x = 26.0
    for look, words in NAMES.items():
        if look in looks:
            picture.mark(look, x, 47)
            picture.text(x + 10, 51, words, look, 12)
            x += 34 + 6.3 * len(words)
    picture.text(x, 51, "(×: how many times xmp's)", "muted", 12)


LINES = {
    ("scaling", "xmp"): ("xmp", "xmp"),
    ("scaling", "floor"): ("floor", "floor: a loop of os.fork"),
    ("peer scaling", "torch"): ("peer", "torch.multiprocessing.spawn"),
}


def replicas(figures: Figures, cores: int) -> Picture | None:
    """Draw a warm spawn of 1 to 256 replicas, both axes logarithmic."""
    picture = Picture("Seconds of a warm spawn of 1 to 256 replicas: xmp, torch and the floor")
    picture.text(20, 28, f"A warm spawn of 1 to 256 replicas on {cores} cores", size=15, bold=True)
    picture.text(20, 48, "from the call to the last replica in the function", "muted", 12)
    left, right, top, bottom = 70, WIDTH - 60, 70, 390

    def across(count: float) -> float:
        return left + (right - left) * math.log2(count) / math.log2(max(COUNTS))

    most = max([16.0, *(max(_medians(of, figures).values(), default=0) for of in LINES)])

    def up(value: float) -> float:
        return bottom - (bottom - top) * math.log10(value / 0.001) / math.log10(most / 0.001)

    for value, words in TICKS.items():
        picture.path([(left, up(value)), (right, up(value))], "grid")
        picture.text(left - 10, up(value) + 4, words, "muted", 12, "end")
    for count in COUNTS:
        picture.text(across(count), bottom + 22, str(count), "muted", 12, "middle")
    picture.text((left + right) / 2, bottom + 42, "replicas", "muted", 12, "middle")
    picture.height = bottom + 58
    drawn = [_curve(picture, key, figures, across, up) for key in LINES]
    return picture if any(drawn) else None


def _medians(of: tuple[str, str], figures: Figures) -> dict[int, float]:
    keys = {count: (*of, f"seconds@{count}") for count in COUNTS}
    return {count: figures.median(key) for count, key in keys.items() if figures.has(key)}


def _curve(
    picture: Picture, of: tuple[str, str], figures: Figures, across: Scale, up: Scale
) -> bool:
    """Draw one line with its name and its last time; whether there is one."""
    look, name = LINES[of]
    found = _medians(of, figures)
    points = [(across(count), up(value)) for count, value in found.items()]
    if not points:
        return False
    picture.path(points, look, 2)
    for x, y in points:
        picture.mark(look, x, y)
    (x, y), bold = points[-1], look == "xmp"
    picture.text(x + 10, y + 9 - 9 * bold, seconds([*found.values()][-1]), look, 12, bold=bold)
    x, y = points[round(0.7 * (len(points) - 1))]
    place = {"xmp": (-14, "end"), "floor": (26, "start"), "peer": (-16, "end")}[look]
    picture.text(x, y + place[0], name, look, 13, place[1], bold=bold)
    if bold and found.get(1, 1) < 0.1:
        x, y = points[0]
        picture.text(x + 14, y + 4, "nprocs=1 needs no new process", "muted", 12)
    return True


PICTURES = {"bench-times.svg": times, "bench-replicas.svg": replicas, "bench-memory.svg": memory}


def write(figures: Figures, cores: int, folder: Path) -> list[Path]:
    """Write those of which something was measured; no other run's stay beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in PICTURES.items():
        path, picture = folder / name, draw(figures, cores)
        path.unlink(missing_ok=True)
        if picture:
            path.write_text(picture.svg())
            written.append(path)
    return written
