"""The demo: train on real digits with torch and JAX, kill a replica, plan for a TPU host.

Run it through ./scripts/demo, which installs what it needs first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import xmp

xmp.preload("torch", "jax", "sklearn.datasets")  # starts warming up while this script imports

import killed  # noqa: E402
import training  # noqa: E402
from rich.console import Console  # noqa: E402

KAGGLE = Path(__file__).parents[2] / "xmp/testing/facts/kaggle-v5e-8.json"
RUNTIMES = ("cpu", "jax", "cuda")
WHAT_FOLLOWS = """\
About a minute on two cores, and no download: training with torch and with JAX,
a launch in which one replica is killed, a plan for a TPU host, a table and a
picture."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./scripts/demo", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runtime", choices=RUNTIMES, action="append",
        help="show this one alone; may be given again (default: cpu with torch, then jax)",
    )  # fmt: skip
    parser.add_argument("--nprocs", type=int, default=None, help="replicas (default: 8)")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument(
        "--out", type=Path, default=Path("demo-output/demo.png"), help="where the picture goes"
    )
    return parser.parse_args()


def replicas(runtime: str, asked: int | None) -> int | None:
    """Eight on CPUs; on GPUs as many as there are, unless the user says otherwise."""
    return asked if asked is not None or runtime == "cuda" else 8


def show_plan_for_kaggle() -> None:
    """``xmp plan`` needs no TPU; its notes say which inherited variables would have done harm."""
    command = [sys.executable, "-m", "xmp", "plan", "-n", "8", "--facts", str(KAGGLE)]
    subprocess.run(command, check=True)


def main() -> int:
    import report  # matplotlib is of no use to the supervisors, which import this file too

    options = arguments()
    console = Console(highlight=False)
    killed.mark_our_processes()
    began = time.monotonic()
    console.print(WHAT_FOLLOWS)
    runs = []
    for runtime in options.runtime or ("cpu", "jax"):
        console.rule(f"training on 1,797 handwritten digits, runtime={runtime}")
        nprocs = replicas(runtime, options.nprocs)
        runs.append(training.train(runtime, nprocs, options.epochs))
    first = runs[0]
    console.rule(f"a second run in which rank {killed.victim_of(first.replicas)} is killed")
    verdict = killed.kill_one(first.runtime, first.replicas, console)
    console.rule("what would be done on Kaggle's v5e-8, from facts recorded there")
    show_plan_for_kaggle()
    report.show_table(console, runs, verdict)
    picture = report.draw(runs, verdict, options.out)
    console.print(f"picture: {picture}\nall of it took {time.monotonic() - began:.0f} s")
    wrong = [fault for run in runs for fault in run.faults()] + verdict.faults()
    for fault in wrong:
        console.print(f"[bold red]wrong:[/] {fault}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
