"""The benchmark measures, judges by the spread, and writes what it found."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "scripts" / "_bench"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import figures

    return figures.judge


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import report

    return report


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "main.py"), *options]
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the bench writes of the run in docs/bench.json."""
    folder = tmp_path_factory.mktemp("kept")
    done = bench("--from", str(ROOT / "docs/bench.json"), "--out", str(folder))
    assert done.returncode == 0, done.stdout
    return folder


def test_a_target_is_missed_only_by_more_than_the_spread(judge: Any) -> None:
    steady, ours = [10.0, 10.0, 10.0], [1.0, 1.0, 1.0]
    assert judge(steady, ours, 10, None).word == "reached"
    assert judge(steady, ours, 11, None).word == "SHORT"
    assert judge([8.0, 10.0, 14.0], ours, 11, None).word == "within spread"
    assert judge(steady, ours, None, 10).word == "reached"
    assert judge(steady, ours, None, 9).word == "SHORT"
    assert judge([8.0, 10.0, 14.0], ours, None, 9).word == "within spread"


def test_a_ratio_is_that_of_the_medians(judge: Any) -> None:
    verdict = judge([9.0, 30.0, 1.0], [3.0, 1.0, 2.0], 3, None)
    assert verdict.ratio == 4.5
    assert verdict.low <= 4.5 <= verdict.high


def test_one_cheap_row_is_measured_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "made"
    done = bench("--quick", "--rows", "environment changed", "--rounds", "2", "--out", str(out))
    assert done.returncode in (0, 1), done.stdout
    assert "environment" in done.stdout
    document = json.loads((out / "bench.json").read_text())
    (row,) = document["rows"]
    assert row["verdict"] in ("reached", "within spread", "SHORT"), document["failed"]
    assert len(document["samples"]["changed / xmp / seconds"]) == 2
    again = tmp_path / "again"
    done = bench("--from", str(out / "bench.json"), "--out", str(again))
    assert done.returncode == 0, done.stdout
    assert (again / "bench.md").read_text() == (out / "bench.md").read_text()
    assert [*out.glob("*.svg")] == [], "no picture shows this row"


def test_rows_that_are_measured_again_take_the_place_of_a_runs_own(report: Any) -> None:
    from cases import ROWS
    from figures import Figures

    path = ROOT / "docs/bench.json"
    kept = json.loads(path.read_text())
    again = {("changed", "xmp", "seconds"): [2.0], ("changed", "xmp-changed", "seconds"): [3.0]}
    facts = {**kept["facts"], "date": "today", "rounds": 1}
    new = report.renewed(path, ROWS, Figures(again), facts)
    differ = {name for name in new["samples"] if new["samples"][name] != kept["samples"].get(name)}
    assert differ == {" / ".join(key) for key in again}
    assert [row["row"] for row in new["rows"]] == [row["row"] for row in kept["rows"]]
    (changed,) = [row for row in new["rows"] if row["row"].startswith("environment changed")]
    assert (changed["ratio"], changed["verdict"]) == (1.5, "SHORT")
    assert new["facts"]["date"] == kept["facts"]["date"]
    assert "; changed: today, 1 rounds" in report.title_of(new["facts"])


def test_rows_of_another_machine_are_not_mixed_in(report: Any) -> None:
    path = ROOT / "docs/bench.json"
    facts = json.loads(path.read_text())["facts"]
    with pytest.raises(SystemExit, match=r"bench\.json: processor was .*, and is Z80"):
        report.renewed(path, [], None, {**facts, "processor": "Z80"})


def test_the_page_shows_the_run_that_is_kept(kept: Path) -> None:
    """Its table, the line below it and its pictures: one run is the source of all."""
    said = (ROOT / "docs/bench.md").read_text()
    plain = " ".join(said.replace("`", "").split())
    shown = " ".join((kept / "bench.md").read_text().split())
    assert shown in plain, "the whole table, and the line below it"
    drawn = {path.name: path.read_text() for path in kept.glob("*.svg")}
    assert drawn == {p.name: p.read_text() for p in (ROOT / "docs/pictures").glob("bench-*.svg")}
    assert {*re.findall(r"\(pictures/(.*)\)", said)} == {*drawn}


def test_the_readme_shows_rows_of_that_run(kept: Path) -> None:
    """Five of the table, and the curve of 1 to 256 replicas."""
    table = (kept / "bench.md").read_text().splitlines()
    lines = (ROOT / "README.md").read_text().splitlines()
    shown = [line for line in lines if re.search(r"\| torch: [\d.,]+ \w+ \|", line)]
    assert len(shown) == 5
    assert [each for each in shown if not any(row.startswith(each) for row in table)] == []

    samples = json.loads((ROOT / "docs/bench.json").read_text())["samples"]
    rows = {"xmp": "scaling / xmp", "floor": "scaling / floor", "torch": "peer scaling / torch"}
    (counts,) = [line for line in lines if line.startswith("| replicas |")]
    numbers = [int(each) for each in re.findall(r"\d+", counts)]
    for name, key in rows.items():
        (row,) = [line for line in lines if re.match(rf"\| {name}\b.*\| \d+ ms \|", line)]
        found = [int(each.replace(",", "")) for each in re.findall(r"([\d,]+) ms", row)]
        measured = [samples.get(f"{key} / seconds@{number}") for number in numbers]
        assert found == [round(statistics.median(each) * 1000) for each in measured if each]


def test_the_page_on_ray_train_shows_its_rows(kept: Path) -> None:
    rows = [line for line in (kept / "bench.md").read_text().splitlines() if "Ray" in line]
    assert len(rows) == 2
    page = (ROOT / "docs/coming-from/ray-train.md").read_text().splitlines()
    assert {*rows} <= {*page}


def test_a_whole_run_is_not_put_into_another_one() -> None:
    done = bench("--into", "docs/bench.json")
    assert done.returncode == 2
    assert "--into: name the rows to measure again by --rows" in done.stdout


def test_rows_that_do_not_exist_are_named() -> None:
    done = bench("--rows", "no such row")
    assert done.returncode == 1
    assert "no row matches 'no such row'" in done.stdout
    assert "second and later spawn" in done.stdout
