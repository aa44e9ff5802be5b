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


def show_table(console: Console, runs: Sequence[Run]) -> None:
    table = Table(title="data-parallel training on 1,797 handwritten digits")
    for heading in ("framework", "runtime", "replicas", "call to fn", "steps/s", "test accuracy"):
        table.add_column(heading, justify="left" if heading in ("framework",) else "right")
    table.add_column("between replicas", justify="right")
    table.add_column("to one process", justify="right")
    for run in runs:
        table.add_row(
            run.framework,
            run.runtime,
            str(run.replicas),
            f"{max(run.reached):.2f} s",
            f"{run.steps_per_second:.0f}",
            f"{run.curve[-1]:.3f}",
            "equal" if run.between_replicas == 0 else f"{run.between_replicas:.1e}",
            f"{run.to_one_process:.1e}",
        )
    console.print(table)


def draw(runs: Sequence[Run], path: Path) -> Path:
    """Start-up of every replica beside the learning curves, as a PNG at ``path``."""
    figure, axes = pyplot.subplots(1, 1 + len(runs), figsize=(5 * (1 + len(runs)), 4))
    for axis, run in zip(axes, runs):
        draw_start(axis, run)
    draw_learning(axes[-1], runs)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def draw_start(axis: Axes, run: Run) -> None:
    ranks = range(run.replicas)
    axis.barh(ranks, run.reached, color="tab:orange", label="call to fn")
    lengths = [end - start for start, end in zip(run.reached, run.ended)]
    axis.barh(ranks, lengths, left=run.reached, color="tab:blue", label="fn")
    axis.invert_yaxis()
    axis.set(title=f"{run.framework}, runtime={run.runtime}", xlabel="seconds since the call")
    axis.set_ylabel("rank")
    axis.legend(loc="lower right")


def draw_learning(axis: Axes, runs: Sequence[Run]) -> None:
    for run in runs:
        label = f"{run.framework}, {run.replicas} replicas"
        axis.plot(range(1, len(run.curve) + 1), run.curve, label=label)
    axis.axhline(0.95, color="grey", linestyle=":", label="0.95")
    axis.set(title="learning", xlabel="epoch", ylabel="test accuracy")
    axis.legend(loc="lower right")
