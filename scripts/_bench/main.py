"""The benchmark: xmp beside its peers and beside plain forks, in one run on this machine.

Run it through ./scripts/bench, which installs what it needs first. Exit status 1: a target is
missed by more than the spread, or could not be measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import picture
import report
from cases import CASES, ROWS, Row
from figures import Figures
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from runner import Runner, rounds_of

QUICK_ROUNDS, ROUNDS = 3, 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./scripts/bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="cheap rows, 3 rounds: under a minute")
    parser.add_argument("--rows", metavar="REGEX", help="only rows whose words match")
    parser.add_argument("--rounds", type=int, help=f"rounds of each measure (default: {ROUNDS})")
    parser.add_argument(
        "--peers", action="store_true",
        help="also torchrun, accelerate, torchrunx, loky and ray, from .venv-bench",
    )  # fmt: skip
    parser.add_argument(
        "--ssh", action="store_true",
        help="only hosts by ssh beside torchrunx: root, and ./scripts/test --ssh before",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("bench-output"), help="folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the JSON goes (in --out)")
    parser.add_argument(
        "--from", type=Path, metavar="JSON", dest="kept",
        help="measure nothing: show an earlier run and write its table and pictures again",
    )  # fmt: skip
    parser.add_argument(
        "--into", type=Path, metavar="JSON",
        help="with --rows: put these figures in the place of those of an earlier run, in its file",
    )  # fmt: skip
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    if options.into and not options.rows:
        parser.error("--into: name the rows to measure again by --rows")
    return options


def chosen(options: argparse.Namespace) -> list[Row]:
    """Return the rows to measure: those asked for by name, all, or the cheap ones."""
    if options.rows:
        found = [row for row in ROWS if re.search(options.rows, row.name)]
        if not found:
            sys.exit(f"no row matches {options.rows!r}; there are:\n" + _names())
    else:
        found = [row for row in ROWS if row.quick or not options.quick]
    if not (able := [row for row in found if _has_gpu() or not row.gpu]):
        sys.exit(f"rows that match {options.rows!r} need a CUDA device, which this host has not")
    return able


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def _names() -> str:
    return "\n".join(f"  {row.name}" for row in ROWS)


def facts(cpus: Sequence[int], rounds: int) -> dict[str, Any]:
    """Return the machine and the versions that figures belong to."""
    names = ("torch", "jax", "numpy", "scikit-learn", "ray")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "processor": _processor(),
        "cores used": list(cpus),
        "cores usable": len(os.sched_getaffinity(0)),
        "rounds": rounds,
        "python": platform.python_version(),
        "versions": dict(_versions(names)),
    }


def _versions(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Give the versions of those that are installed: the rows of a GPU do without Ray."""
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def wanted(rows: Sequence[Row], full: bool, quick: bool) -> dict[str, list[str]]:
    """Return the systems to measure, by case, in the order of the tables."""
    keys = {key for row in rows for key in row.keys if not quick or key not in row.also}
    pairs = {(case, system) for case, system, _ in keys}
    if full:
        pairs.add(("peer scaling", "torch"))
    found = {
        name: [system for system in case.systems if (name, system) in pairs]
        for name, case in CASES.items()
    }
    return {name: systems for name, systems in found.items() if systems}


def measure(
    console: Console, cases: dict[str, list[str]], cpus: Sequence[int], rounds: int, words: str
) -> Figures:
    """All rounds of all cases, with a line that says where it is."""
    figures = Figures()
    total = sum(len(s) * rounds_of(CASES[name], rounds) for name, s in cases.items())
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(words, total=total)

        def say(case: str, system: str, number: int) -> None:
            step = "starting" if number < 0 else f"round {number + 1}"
            progress.update(task, description=f"{words}{case}: {system}, {step}")
            progress.advance(task, 0 if number < 0 else 1)

        runner = Runner(figures, cpus, rounds, say)
        for name, systems in cases.items():
            runner.measure(CASES[name], systems)
    return figures


def main() -> int:
    options = arguments()
    console = Console(stderr=False, width=None if sys.stdout.isatty() else 160)
    if options.ssh:
        import over_ssh

        over_ssh.show(console, over_ssh.measure(options.rounds or QUICK_ROUNDS))
        return 0
    rows = chosen(options)
    if options.kept:
        figures, known = report.read(options.kept)
        rows = report.measured(rows, figures)
        report.show(console, rows, figures, None, report.title_of(known))
        write_out(options.out, rows, figures, known, console)
        return 0
    usable = sorted(os.sched_getaffinity(0))
    cpus = usable[:2]
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    full = not options.rows and not options.quick
    cases = wanted(rows, full, options.quick)
    figures = measure(console, cases, cpus, rounds, "")
    free = None
    if len(usable) > 2:
        spread_out = {name: systems for name, systems in cases.items() if CASES[name].unpinned}
        free = measure(console, spread_out, usable, rounds, "all cores: ")
    known = facts(cpus, rounds)
    report.show(console, rows, figures, free, report.title_of(known))
    short = report.falls_short(rows, figures)
    document = report.as_json(rows, figures, free, known)
    if options.into:
        document = report.renewed(options.into, ROWS, figures, known)
        figures, known = report.samples_in(document), document["facts"]
        rows = report.measured(ROWS, figures)
    if options.peers:
        document["peers"] = beside_peers(console, cpus, rounds)
    place = options.json or options.into or options.out / "bench.json"
    report.save(document, place)
    console.print(place, highlight=False)
    write_out(options.out, rows, figures, known, console)
    return 1 if short else 0


def beside_peers(console: Console, cpus: Sequence[int], rounds: int) -> dict[str, Any]:
    """Print the other launchers' table. Return its figures as they go into the JSON."""
    import peers

    with console.status("peers") as status:

        def say(case: str, system: str, number: int) -> None:
            status.update(f"{case}: {system}, round {number + 1}")

        figures = peers.measure(console, cpus, rounds, say)
    peers.show(console, figures)
    return report.samples_of(figures)


def write_out(
    folder: Path, rows: Sequence[Row], figures: Figures, known: dict[str, Any], console: Console
) -> None:
    """Write the table for docs/bench.md and the pictures."""
    pictures = picture.write(figures, len(known["cores used"]), folder)
    table = folder / "bench.md"
    table.write_text(report.as_markdown(rows, figures, report.title_of(known)))
    for path in (table, *pictures):
        console.print(path, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
