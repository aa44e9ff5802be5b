"""The picture of a run: a bar for each target, and a line over the number of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from cases import COUNTS, Row, Target
from figures import Figures, Verdict
from report import verdict_of

matplotlib.use("Agg")  # before pyplot looks for a screen

from matplotlib import pyplot
from matplotlib.axes import Axes

BAR = {True: "tab:green", False: "tab:red"}
LINES = {
    ("scaling", "xmp"): "tab:blue",
    ("scaling", "floor"): "tab:grey",
    ("peer scaling", "torch"): "tab:orange",
}
Found = tuple[str, Target, Verdict]


def draw(rows: Sequence[Row], figures: Figures, title: str, path: Path) -> None:
    """Write a PNG with what was measured at ``path``."""
    found = _found(rows, figures)
    height = max(5.0, 0.36 * len(found) + 1.5)
    figure, axes = pyplot.subplots(1, 2, figsize=(17, height), width_ratios=(1.5, 1))
    _bars(axes[0], found)
    _scaling(axes[1], figures)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _found(rows: Sequence[Row], figures: Figures) -> list[Found]:
    found = []
    for row in rows:
        for target in row.targets:
            verdict = verdict_of(target, figures)
            if verdict is not None and target.beside is not None:
                words = f"{row.name[:58]} | {target.beside[1]}"
                found.append((words, target, verdict))
    return found


def _times_better(target: Target, verdict: Verdict) -> float:
    """A bar is as long as the target is surpassed: 1 is the target's line for every row."""
    if target.at_least is not None:
        return verdict.ratio / target.at_least
    assert target.at_most is not None
    return target.at_most / verdict.ratio


def _bars(axis: Axes, found: Sequence[Found]) -> None:
    lengths = [_times_better(target, verdict) for _, target, verdict in found]
    colors = [BAR[verdict.reached] for _, _, verdict in found]
    axis.barh(range(len(found)), lengths, color=colors)
    for place, (_, target, verdict) in enumerate(found):
        at_least = target.at_least is not None
        sign, limit = ("≥", target.at_least) if at_least else ("≤", target.at_most)
        axis.annotate(
            f" {verdict.ratio:.3g}×, target {sign} {limit:g}×", (lengths[place], place),
            va="center", fontsize=7,
        )  # fmt: skip
    axis.set_yticks(range(len(found)), [words for words, _, _ in found], fontsize=7)
    axis.invert_yaxis()
    axis.axvline(1, color="black", linestyle=":")
    axis.set_xlim(0, 1.5 * max([1.5, *lengths]))
    axis.set_xlabel("ratio beside the system named, as a multiple of the target (dotted line)")


def _scaling(axis: Axes, figures: Figures) -> None:
    for (case, system), color in LINES.items():
        counts = [n for n in COUNTS if figures.has((case, system, f"seconds@{n}"))]
        seconds = [figures.median((case, system, f"seconds@{n}")) for n in counts]
        if counts:
            axis.plot(counts, seconds, marker="o", color=color, label=system)
    if axis.lines:
        axis.legend()
        axis.set(xscale="log", yscale="log")
    axis.set_xticks(COUNTS, [str(count) for count in COUNTS])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.set(xlabel="replicas", ylabel="seconds from the call to the last replica in fn")
    axis.set_title("warm spawn of 1…256 replicas")
