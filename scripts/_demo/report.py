"""The table and the picture at the end of the demo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from rich.console import Console
from rich.table import Table
from training import Run

matplotlib.use("Agg")  # before pyplot looks for a screen

from matplotlib import pyplot
from matplotlib.axes import Axes

STAGES = {  # what a replica waits for until it is in the function, by the stage that ends it
    "received": ("template and supervisor", "tab:purple"),
    "loaded": ("load fn and args", "tab:red"),
    "forked": ("fork of earlier ranks", "tab:brown"),
    "entered": ("fork and runtime", "tab:orange"),
    "left": ("fn", "tab:blue"),
}


def show_table(console: Console, runs: Sequence[Run]) -> None:
    table = Table(title="data-parallel training on 1,797 handwritten digits")
    table.add_column("")
    for heading in (
        *("replicas", "call to fn", "steps/s", "test accuracy", "weights of all replicas"),
        "and of one process",
    ):
        table.add_column(heading, justify="right")
    for run in runs:
        table.add_row(
            f"{run.framework} ({run.runtime})",
            str(run.replicas),
            f"{run.call_to_function:.2f} s",
            f"{run.steps_per_second:.0f}",
            f"{run.curve[-1]:.3f}",
            "equal" if run.between_replicas == 0 else f"differ {run.between_replicas:.0e}",
            f"within {run.to_one_process:.0e}",
        )
    console.print(table)


def draw(runs: Sequence[Run], path: Path) -> Path:
    """Start-up of every replica beside the learning curves, as a PNG at ``path``."""
    figure, axes = pyplot.subplots(1, 1 + len(runs), figsize=(5 * (1 + len(runs)), 4.2))
    for axis, run in zip(axes, runs):
        draw_start(axis, run)
    draw_learning(axes[-1], runs)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower left", ncol=len(STAGES))
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


def draw_learning(axis: Axes, runs: Sequence[Run]) -> None:
    for run in runs:
        label = f"{run.framework}, {run.replicas} replicas"
        axis.plot(range(1, len(run.curve) + 1), run.curve, label=label)
    axis.axhline(0.95, color="grey", linestyle=":", label="0.95")
    axis.set(title="learning", xlabel="epoch", ylabel="test accuracy")
    axis.legend(loc="lower right")
