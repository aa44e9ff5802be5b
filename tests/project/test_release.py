"""A release: what is claimed is tried, and its papers agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import xmp
from tests.support.stage import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text()
PYTHONS = re.findall(r'^pythons="(.*)"$', (ROOT / "scripts/test").read_text(), re.M)[0].split()
"""Those that ./scripts/test --wheel tries."""
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
FORMS = [path for path in TEMPLATES if path.name != "config.yml"]


def test_the_pythons_that_are_tried_are_claimed_and_no_others() -> None:
    claimed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert claimed == PYTHONS
    assert f'requires-python = ">={PYTHONS[0]}"' in PROJECT
    assert f"on Python {PYTHONS[0]} to {PYTHONS[-1]} " in (ROOT / "scripts/test").read_text()
    assert f"each Python from {PYTHONS[0]} to {PYTHONS[-1]}" in CHANGELOG


def run_lane(file: str, chosen: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Tests of ./scripts/test --wheel, in the interpreter that is here."""
    lane = ["-m", "pytest", "-p", "no:cacheprovider", "-m", "wheel", "-k", chosen]
    return subprocess.run(
        [sys.executable, *lane, f"tests/wheel/{file}"], cwd=ROOT,
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


@pytest.mark.parametrize(("ci", "status", "said"), [("true", 1, "ERROR"), ("", 0, "SKIPPED")])
def test_a_python_that_is_missing_is_an_error_in_ci_and_named_elsewhere(
    ci: str, status: int, said: str
) -> None:
    given = {"CI": ci, "XMP_TEST_PYTHONS": "3.99="}
    done = run_lane("test_installed.py", "3.99 and nothing", given)
    assert done.returncode == status, done.stdout
    assert re.search(rf"{said}.* Python 3.99 is not installed here: what", done.stdout)


def test_the_lane_tries_what_it_is_given(tmp_path: Path) -> None:
    """Where that is nothing, it builds nothing of its own."""
    done = run_lane("test_distribution.py", "the_source_has", {"XMP_TEST_DIST": str(tmp_path)})
    assert done.returncode == 1, done.stdout
    assert "not enough values to unpack (expected 1, got 0)" in done.stdout


# --- papers ---------------------------------------------------------------------------------------


def versions() -> list[tuple[str, str]]:
    """The versions of the changelog and their dates, as they stand there."""
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)


def test_the_changelog_is_in_order_and_knows_this_version() -> None:
    assert versions()[0][0] == xmp.__version__
    assert versions() == sorted(
        versions(), key=lambda each: [*map(int, each[0].split("."))], reverse=True
    )
    assert len(re.findall(r"^## ", CHANGELOG, re.MULTILINE)) == len(versions()) + 1
    assert CHANGELOG.index("## [Unreleased]") < CHANGELOG.index(f"## [{xmp.__version__}]")
    assert {*re.findall(r"^### (.*)$", CHANGELOG, re.MULTILINE)} <= KINDS


def test_a_citation_names_this_version() -> None:
    said: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert said["cff-version"] == "1.2.0"
    assert (said["version"], said["date-released"]) == (
        xmp.__version__,
        date.fromisoformat(versions()[0][1]),
    )
    assert said["authors"] == [{"name": "The xmp authors"}]
    assert f'license = "{said["license"]}"' in PROJECT


def test_the_workflow_runs_what_ci_runs_with_each_python() -> None:
    """The last Python that setup-python gets is python3."""
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["run"]
    (command,) = [step["run"] for step in job["steps"] if "run" in step]
    assert re.findall(r"'(\./.*?)'", command) == ["./scripts/test --all", "./.ci/run"]
    (given,) = [step["with"] for step in job["steps"] if "python" in step.get("uses", "")]
    assert {*given["python-version"].split()} == {*PYTHONS}
    assert given["python-version"].split()[-1] == "3.11"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_report_has_the_facts_of_its_host(path: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(path.read_text())
    assert {*form} == {"name", "description", "labels", "body"}
    fields = {each["id"]: each for each in form["body"] if each["type"] == "textarea"}
    assert "`xmp facts --json`" in fields["facts"]["attributes"]["label"]
    if path.stem == "bug":
        assert "error's text" in fields["error"]["attributes"]["label"]
        assert all(fields[each]["validations"]["required"] for each in ("facts", "error"))
