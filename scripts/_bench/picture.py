"""The picture of a run: a bar for each target, and a line over the number of replicas."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from cases import COUNTS, Row, Target
from figures import Figures, Verdict
from report import verdict_of

matplotlib.use("Agg")  # before pyplot looks for a screen

from matplotlib import pyplot
from matplotlib.axes import Axes

# Blue and orange differ for colour-blind readers too; the hatching and the words for all.
LOOKS = {
    "reached": {"color": "tab:blue"},
    "within spread": {"color": "tab:orange", "hatch": "..", "edgecolor": "black"},
    "SHORT": {"color": "tab:orange", "hatch": "//", "edgecolor": "black"},
}
LINES = {
    ("scaling", "xmp"): ("tab:blue", "o"),
    ("scaling", "floor"): ("tab:grey", "s"),
    ("peer scaling", "torch"): ("tab:orange", "^"),
}
SOURCE = "Source"
"""The text chunk of the PNG that has the digest of the figures it was drawn from."""
Found = tuple[str, Target, Verdict]


def draw(rows: Sequence[Row], figures: Figures, title: str, source: str, path: Path) -> None:
    """Write a PNG with what was measured at ``path``; ``source`` is the figures' digest."""
    found = _found(rows, figures)
    height = max(5.0, 0.42 * len(found) + 1.5)
    figure, axes = pyplot.subplots(1, 2, figsize=(17, height), width_ratios=(1.5, 1))
    _bars(axes[0], found)
    _scaling(axes[1], figures)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={SOURCE: source})
    pyplot.close(figure)


def _found(rows: Sequence[Row], figures: Figures) -> list[Found]:
    found = []
    for row in rows:
        for target in row.targets:
            verdict = verdict_of(target, figures)
            if verdict is not None and target.beside is not None:
                words = textwrap.fill(f"{row.name} | {target.beside[1]}", 58)
                found.append((words, target, verdict))
    return found


def _times_better(target: Target, verdict: Verdict) -> float:
    """How far the target is surpassed: 1 is the target's line for every row."""
    if target.at_least is not None:
        return verdict.ratio / target.at_least
    assert target.at_most is not None
    return target.at_most / verdict.ratio


def _bars(axis: Axes, found: Sequence[Found]) -> None:
    """Bars from the target's line: to the right where it is reached, to the left where not."""
    axis.set_xscale("log")
    for place, (_, target, verdict) in enumerate(found):
        times = _times_better(target, verdict)
        axis.barh(place, times - 1, left=1, **LOOKS[verdict.word])
        sign, limit = ("≥", target.at_least) if target.at_least else ("≤", target.at_most)
        digits = 0 if verdict.ratio >= 10 else 2  # as in the table
        missed = "" if verdict.reached else f"  ✗ {verdict.word.lower()}"
        axis.annotate(
            f" {verdict.ratio:.{digits}f}×, target {sign} {limit:g}×{missed}",
            (max(1.0, times), place), va="center", fontsize=7,
        )  # fmt: skip
    axis.set_yticks(range(len(found)), [words for words, _, _ in found], fontsize=7)
    axis.invert_yaxis()
    axis.axvline(1, color="black", linestyle=":")
    times = [_times_better(target, verdict) for _, target, verdict in found]
    axis.set_xlim(0.7 * min([1.0, *times]), 6 * max([1.5, *times]))
    ticks = [n for n in (0.5, 1, 2, 5, 10, 20) if n <= max([2.0, *times])]
    axis.set_xticks(ticks, [f"{n:g}×" for n in ticks])
    axis.minorticks_off()
    axis.set_xlabel("how many times better than the target (dotted line), logarithmic")


def _scaling(axis: Axes, figures: Figures) -> None:
    for (case, system), (color, marker) in LINES.items():
        counts = [n for n in COUNTS if figures.has((case, system, f"seconds@{n}"))]
        seconds = [figures.median((case, system, f"seconds@{n}")) for n in counts]
        if counts:
            axis.plot(counts, seconds, marker=marker, color=color, label=system)
    if axis.lines:
        axis.legend()
        axis.set(xscale="log", yscale="log")
    axis.set_xticks(COUNTS, [str(count) for count in COUNTS])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.set(xlabel="replicas", ylabel="seconds from the call to the last replica in fn")
    axis.set_title("warm spawn of 1…256 replicas")
