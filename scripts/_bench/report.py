"""The table of a run, and the same as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cases import Row, Target
from figures import Figures, Key, Verdict, judge, quartiles
from rich.console import Console
from rich.table import Table

COLORS = {"reached": "green", "within spread": "yellow", "SHORT": "bold red"}


def verdict_of(target: Target, figures: Figures) -> Verdict | None:
    """How far a target is reached; None if it was not measured."""
    beside = [target.beside] if target.beside else []
    if not figures.has(target.of, *beside):
        return None
    mine = figures.samples[target.of]
    other = figures.samples[target.beside] if target.beside else [1.0] * len(mine)
    if target.at_least is not None:
        return judge(other, mine, target.at_least, None)
    return judge(mine, other, None, target.at_most)


def measured(rows: Iterable[Row], figures: Figures) -> list[Row]:
    """Return the rows of which a run has measured something."""
    return [row for row in rows if any(verdict_of(each, figures) for each in row.targets)]


def falls_short(rows: Iterable[Row], figures: Figures) -> bool:
    """Whether any target is missed by more than the spread, or could not be measured."""
    verdicts = [verdict_of(target, figures) for row in rows for target in row.targets]
    return any(verdict is None or verdict.short for verdict in verdicts)


def shown(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 1e6:,.0f} MB"
    if unit == "s":
        return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"
    return f"{value:.2f} {unit}"


def _with_spread(key: Key, figures: Figures, unit: str) -> str:
    if not figures.has(key):
        return "–"
    low, high = quartiles(figures.samples[key])
    if len(figures.samples[key]) < 2:
        return shown(figures.median(key), unit)
    return f"{shown(figures.median(key), unit)} ({shown(low, unit)}…{shown(high, unit)})"


def _wanted(target: Target) -> str:
    if target.at_least is not None:
        return f"≥ {target.at_least:g}×"
    assert target.at_most is not None
    return f"≤ {target.at_most:g}×" if target.beside else f"≤ {shown(target.at_most, target.unit)}"


def _ratio(target: Target, verdict: Verdict | None) -> str:
    if verdict is None:
        return "–"
    if target.beside is None:
        return shown(verdict.ratio, target.unit)
    digits = 0 if verdict.ratio >= 10 else 2
    return f"{verdict.ratio:.{digits}f}× ({verdict.low:.{digits}f}…{verdict.high:.{digits}f})"


def _name(key: Key) -> str:
    return f"{key[1]} {key[2].partition('@')[2]}".strip()


def show(
    console: Console, rows: Sequence[Row], figures: Figures, free: Figures | None, title: str
) -> None:
    """One line for each target; ``free`` has the figures of all processors, shown beside."""
    table = Table(title=title)
    table.add_column("work (8 replicas unless said)", ratio=2)
    headings = ["xmp: median (quartiles)", "beside", "ratio", "target", ""]
    for heading in [*headings, "all cores"] if free else headings:
        table.add_column(heading)
    for row in rows:
        for number, target in enumerate(row.targets):
            verdict = verdict_of(target, figures)
            word = verdict.word if verdict else "not measured"
            beside = target.beside
            cells = [
                "" if number else row.name,
                f"{_with_spread(target.of, figures, target.unit)}"
                + ("" if target.of[1] == "xmp" else f", {_name(target.of)}"),
                f"{_name(beside)}: {_with_spread(beside, figures, target.unit)}" if beside else "",
                _ratio(target, verdict),
                _wanted(target),
                f"[{COLORS.get(word, 'red')}]{word}[/]",
            ]
            cells += [_ratio(target, verdict_of(target, free))] if free else []
            table.add_row(*cells)
        for key in filter(figures.has, row.also):
            table.add_row("", f"{_with_spread(key, figures, 's')} {_name(key)}", "", "", "", "")
        table.add_section()
    console.print(table)
    for (case, system), reason in figures.failed.items():
        console.print(f"[red]not measured:[/] {case}, {system}: {reason}", highlight=False)


def as_markdown(rows: Sequence[Row], figures: Figures, title: str) -> str:
    """Return the table of medians for docs/bench.md."""
    lines = ["| work (8 replicas unless said) | xmp | beside | ratio | wanted |"]
    lines.append("|---|---|---|---|---|")
    for row in rows:
        for number, target in enumerate(row.targets):
            verdict = verdict_of(target, figures)
            own = "" if target.of[1] == "xmp" else f", {_name(target.of)}"
            mine = f"{_median(target.of, figures, target.unit)}{own}"
            beside = target.beside
            other = f"{_name(beside)}: {_median(beside, figures, target.unit)}" if beside else ""
            ratio = _ratio(target, verdict).partition(" (")[0]
            name = "" if number else row.name
            lines.append(f"| {name} | {mine} | {other} | {ratio} | {_wanted(target)} |")
    return "\n".join([*lines, "", f"{title}.", ""])


def _median(key: Key, figures: Figures, unit: str) -> str:
    return shown(figures.median(key), unit) if figures.has(key) else "–"


def as_json(
    rows: Sequence[Row], figures: Figures, free: Figures | None, facts: dict[str, Any]
) -> dict[str, Any]:
    """Everything that was measured, by row and in full."""
    found = [
        {
            "row": row.name,
            "of": list(target.of),
            "beside": list(target.beside) if target.beside else None,
            "at_least": target.at_least,
            "at_most": target.at_most,
            "median": figures.median(target.of) if verdict else None,
            "ratio": verdict.ratio if verdict else None,
            "quartiles": [verdict.low, verdict.high] if verdict else None,
            "verdict": verdict.word if verdict else "not measured",
        }
        for row in rows
        for target in row.targets
        for verdict in [verdict_of(target, figures)]
    ]
    document = {"version": 1, "facts": facts, "rows": found, "samples": samples_of(figures)}
    if free:
        document["unpinned"] = samples_of(free)
    document["failed"] = {" / ".join(key): why for key, why in figures.failed.items()}
    return document


def samples_of(figures: Figures) -> dict[str, list[float]]:
    return {" / ".join(key): values for key, values in figures.samples.items()}


def read(path: Path) -> tuple[Figures, dict[str, Any]]:
    """Return the figures of an earlier run, and the facts that belong to them."""
    document = json.loads(path.read_text())
    return samples_in(document), document["facts"]


def samples_in(document: dict[str, Any]) -> Figures:
    """Read the figures of a run that ``as_json`` has written."""
    samples: dict[Key, list[float]] = {}
    for name, values in document["samples"].items():
        case, system, measure = name.split(" / ")
        samples[case, system, measure] = values
    failed = {tuple(name.split(" / ")): why for name, why in document["failed"].items()}
    return Figures(samples, failed)


_SAME = ("processor", "cores used", "kernel", "python")
"""Facts that all parts of a run share."""


def renewed(
    path: Path, rows: Sequence[Row], figures: Figures, facts: dict[str, Any]
) -> dict[str, Any]:
    """Return an earlier run, as JSON, with these figures for the cases that were measured again.

    A ratio has both its sides from one run, as a case is measured as a whole. Raises SystemExit
    where the earlier run was made on another machine.
    """
    earlier = json.loads(path.read_text())
    for name in _SAME:
        if earlier["facts"][name] != facts[name]:
            sys.exit(f"{path}: {name} was {earlier['facts'][name]}, and is {facts[name]}")
    kept = samples_in(earlier)
    again = {case for case, _, _ in figures.samples} | {case for case, _ in figures.failed}
    samples = {key: each for key, each in kept.samples.items() if key[0] not in again}
    failed = {key: why for key, why in kept.failed.items() if key[0] not in again}
    whole = Figures({**samples, **figures.samples}, {**failed, **figures.failed})
    parts = {**earlier["facts"].get("parts", {}), **dict.fromkeys(sorted(again), facts)}
    known = {**earlier["facts"], "parts": parts}
    return {**earlier, **as_json(measured(rows, whole), whole, None, known)}


def title_of(facts: dict[str, Any]) -> str:
    """Where and when a run was made, and those of its cases that were measured again."""
    title = (
        f"{facts['date']}, {facts['processor']}, {len(facts['cores used'])} cores, "
        f"{facts['rounds']} rounds, Linux {facts['kernel']}, Python {facts['python']}, "
        f"{_listed(facts['versions'].items())}"
    )
    for case, part in facts.get("parts", {}).items():
        other = _listed(sorted(part["versions"].items() - facts["versions"].items()))
        title += f"; {case}: {part['date']}, {part['rounds']} rounds" + f", {other}" * bool(other)
    return title


def _listed(versions: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions)


def save(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
