"""Jobs of up to 4,096 hosts, simulated on this machine: what the coordinator of host 0 bears.

Run it through ./scripts/hosts. The coordinator is the real process, and its messages are real; the
other hosts are two processes that send what members send. Exit status 1: a target is missed.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import fit
import job
import planning
from rich.console import Console
from rich.table import Table

SIZES = (2, 64, 1024, 4096)
MOST_OF_A_CORE = 0.05
"""Of the beats of all hosts, at the coordinator."""


def _ms(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2g} ms"


def _percent(value: float) -> str:
    return f"{value * 100:.2g} %"


def _mib(value: float) -> str:
    return f"{value / 2**20:.0f} MiB"


def _number(value: float) -> str:
    return f"{value:,.0f}"


ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("all hosts have connected and joined", "roll call", _ms),
    ("the next roll call, after a restart", "next roll call", _ms),
    ("beats, both ways: coordinator, of a core", "beats", _percent),
    ("the same of the simulation", "simulated beats", _percent),
    ("beats heard by the coordinator, a second", "beats sent", _number),
    ("one host fails: verdict on all", "one failure", _ms),
    ("messages of that", "one failure: messages", _number),
    ("all hosts fail at once: verdict on all", "all fail", _ms),
    ("messages of that", "all fail: messages", _number),
    ("coordinator's processor time of that", "all fail: coordinator", _ms),
    ("all make progress at once: all know", "progress", _ms),
    ("messages of that", "progress: messages", _number),
    ("all are done: all know", "done", _ms),
    ("messages of that", "done: messages", _number),
    ("coordinator's memory", "memory", _mib),
    ("plan of a host, placed by hand", "plan, by hand", _ms),
    ("plan of a host, JobSet of v6e-256 slices", "plan, JobSet", _ms),
    ("plan of a host, one slice", "plan, one slice", _ms),
    ("its longest variable, characters", "longest variable, one slice", _number),
)
FITTED = frozenset(key for _, key, _ in ROWS) - {"progress"}
"""Progress is said at most once a second: what is seen is where in this second it came."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./scripts/hosts", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--hosts", type=int, nargs="+", default=SIZES, metavar="N",
        help="sizes of the jobs, powers of two (default: 2 64 1024 4096)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="of beats to measure (default: 12)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table there")
    options = parser.parse_args()
    for size in options.hosts:
        if size < 2 or size & (size - 1) or size > 8192:
            parser.error(f"--hosts {size}: powers of two from 2 to 8192")
    return options


def curve(key: str, show: Callable[[float], str], found: dict[int, dict[str, float]]) -> str:
    """Return what a host adds, and what the job costs anyhow."""
    if len(found) < 3 or key not in FITTED:
        return ""
    fixed, each = fit.line(list(found), [figures[key] for figures in found.values()])
    return f"{show(max(fixed, 0.0))} + {show(max(each, 0.0) * 1000)} per 1,000 hosts"


def table(found: dict[int, dict[str, float]]) -> list[list[str]]:
    head = ["hosts × 4 chips", *(f"{size:,}" for size in found), "fitted"]
    body = [
        [words, *(show(figures[key]) for figures in found.values()), curve(key, show, found)]
        for words, key, show in ROWS
    ]
    return [head, *body]


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def main() -> int:
    options = arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    found: dict[int, dict[str, float]] = {}
    for size in options.hosts:
        with console.status(f"{size} hosts"):
            found[size] = job.measured(size, options.seconds) | planning.measured(size)
    rows = table(found)
    title = f"Python {platform.python_version()}, Linux {platform.release().split('-')[0]}"
    shown = Table(*rows[0], title=title)
    for row in rows[1:]:
        shown.add_row(*row)
    console.print(shown)
    if options.markdown:
        options.markdown.write_text(as_markdown(rows))
    share = found[max(found)]["beats"]
    if share >= MOST_OF_A_CORE:
        console.print(f"missed: beats take {_percent(share)} of a core, the target is under 5 %")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
