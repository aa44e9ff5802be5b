"""The table and the picture at the end of the demo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from killed import Verdict
from rich.console import Console
from rich.table import Table
from training import Run

matplotlib.use("Agg")  # before pyplot looks for a screen

from matplotlib import pyplot
from matplotlib.axes import Axes

# Colours of Okabe and Ito, which differ for colour-blind readers too.
STAGES = {  # what a replica waits for until it is in the function, by the stage that ends it
    "received": ("template and supervisor", "#56b4e9"),
    "loaded": ("load fn and args", "#cc79a7"),
    "forked": ("fork of earlier ranks", "#009e73"),
    "entered": ("fork and runtime", "#e69f00"),
    "left": ("fn", "#0072b2"),
}
KILLED = "#d55e00"


def show_table(console: Console, runs: Sequence[Run], verdict: Verdict) -> None:
    """Print what was promised: a column for each training, and the end of the killed replica."""
    table = Table(title="data-parallel training on 1,797 handwritten digits")
    for heading in ("", *(f"{run.framework} ({run.runtime})" for run in runs)):
        table.add_column(heading, justify="right" if heading else "left")
    for words, shown in ROWS.items():
        table.add_row(words, *map(shown, runs))
    table.add_section()
    table.add_row("one replica killed: until the error is raised", f"{verdict.seconds:.2f} s")
    table.add_row("processes left after it", str(len(verdict.left)))
    console.print(table)


ROWS: dict[str, Callable[[Run], str]] = {
    "replicas": lambda run: str(run.replicas),
    "first call, until all are in the function": lambda run: f"{run.call_to_function:.2f} s",
    "later call": lambda run: f"{run.later:.2f} s",
    "steps a second": lambda run: f"{run.steps_per_second:.0f}",
    "test accuracy": lambda run: f"{run.curve[-1]:.3f}",
    "weights of all replicas": lambda run: (
        "equal" if run.between_replicas == 0 else f"differ {run.between_replicas:.0e}"
    ),
    "beside those of one process": lambda run: f"within {run.to_one_process:.0e}",
}


def draw(runs: Sequence[Run], verdict: Verdict, path: Path) -> Path:
    """Start-up of every replica, the end of the one killed, the learning curves: a PNG."""
    count = len(runs) + 2
    figure, axes = pyplot.subplots((count + 1) // 2, 2, figsize=(11, 4.2 * ((count + 1) // 2)))
    places = [*axes.flat]
    for axis, run in zip(places, runs):
        draw_start(axis, run)
    draw_killed(places[len(runs)], verdict)
    draw_learning(places[len(runs) + 1], runs)
    for unused in places[count:]:
        unused.remove()
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.legend(
        *places[0].get_legend_handles_labels(),
        title="what a replica does from the call on",
        loc="lower center",
        ncol=len(STAGES),
        frameon=False,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def draw_start(axis: Axes, run: Run) -> None:
    ranks = range(run.replicas)
    reached = [0.0] * run.replicas
    for stage, (label, color) in STAGES.items():
        ends = [stages[stage] for stages in run.stages]
        lengths = [end - start for start, end in zip(reached, ends)]
        axis.barh(ranks, lengths, left=reached, color=color, label=label)
        reached = ends
    axis.invert_yaxis()
    axis.set(title=f"{run.framework}: from call to fn", xlabel="seconds since the call")
    axis.set_ylabel("rank")
    axis.set_xlim(0, 1.2 * run.call_to_function)  # fn itself takes much longer


def draw_killed(axis: Axes, verdict: Verdict) -> None:
    """Show from just before the kill until the error is raised."""
    killed = verdict.lives[verdict.expected][1]
    span = max(verdict.verdict, *(end for _, end in verdict.lives)) - killed
    for rank, (began, ended) in enumerate(verdict.lives):
        victim = rank == verdict.expected
        color = KILLED if victim else STAGES["left"][1]
        axis.barh(rank, ended - began, left=began - killed, color=color)
        words = "SIGKILL" if victim else "waits for it; ended by xmp"
        place = (span / 20, rank)
        axis.annotate(words, place, va="center", fontsize=8, color="black" if victim else "white")
    axis.plot(0, verdict.expected, marker="X", color="black", markersize=9)
    axis.axvline(verdict.verdict - killed, color="black", linestyle=":")
    axis.set_xlim(-0.3 * span, 1.1 * span)
    axis.invert_yaxis()
    axis.set(
        title=f"rank {verdict.expected} is killed (dotted: xmp says so)",
        xlabel="seconds since its end",
    )
    axis.set_ylabel("rank")


def draw_learning(axis: Axes, runs: Sequence[Run]) -> None:
    for run in runs:
        label = f"{run.framework}, {run.replicas} replicas"
        axis.plot(range(1, len(run.curve) + 1), run.curve, label=label)
    axis.axhline(0.95, color="grey", linestyle=":", label="0.95")
    axis.set(title="learning", xlabel="epoch", ylabel="test accuracy")
    axis.legend(loc="lower right")
