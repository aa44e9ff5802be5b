"""A release: what is claimed is tried, its papers agree, and a person alone uploads it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import xmp
from tests.support.stage import ROOT
from tests.support.terminal import Terminal

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


@pytest.mark.parametrize(("ci", "status", "said"), [("true", 1, "ERROR"), ("", 0, "SKIPPED")])
def test_a_python_that_is_missing_is_an_error_in_ci_and_named_elsewhere(
    ci: str, status: int, said: str
) -> None:
    lane = ["-m", "pytest", "-p", "no:cacheprovider", "-m", "wheel", "-k", "3.99 and nothing"]
    done = subprocess.run(
        [sys.executable, *lane, "tests/wheel/test_installed.py"], cwd=ROOT,
        env={**os.environ, "CI": ci, "XMP_TEST_PYTHONS": "3.99="},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == status, done.stdout
    assert re.search(rf"{said}.* Python 3.99 is not installed here: what", done.stdout)


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
    assert [step["run"] for step in job["steps"] if "run" in step] == ["./.ci/run"]
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


# --- scripts/publish ------------------------------------------------------------------------------

CALLS = '#!/bin/sh\necho "$(basename "$0") $* CI=${CI:-}" >>"FILE"\n'
HOME = 'home = "https://code.example/xmp"'


class Release:
    """A repository with our papers, whose programs for building and uploading only write a line."""

    def __init__(self, folder: Path) -> None:
        self.root, self.calls = folder / "root", folder / "calls"
        for name in ("scripts/publish", "CHANGELOG.md", ".gitignore"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.write("xmp/__init__.py", f'__version__ = "{xmp.__version__}"  # as in ours\n')
        self.write("pyproject.toml", re.sub(r"(?m)^home = .*$", HOME, PROJECT))
        environment = (ROOT / "scripts/_env.sh").read_text()
        self.write("scripts/_env.sh", f"{environment}\nmake_wheel_environment() {{ :; }}\n")
        for program in ("scripts/test", ".venv-wheel/bin/python"):
            self.write(program, CALLS.replace("FILE", str(self.calls)))
            (self.root / program).chmod(0o755)
        self.git("init", "-q")
        self.commit()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def change(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=me", "-c", "user.email=me@example.invalid")
        command = ["git", *who, *words]
        return subprocess.run(
            command, cwd=self.root, capture_output=True, text=True, check=True
        ).stdout

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "A release")

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def uncommitted(release: Release) -> None:
    release.write("notes.txt", "not yet\n")


def without_section(release: Release) -> None:
    release.change("CHANGELOG.md", f"## [{xmp.__version__}] - ", "## Soon ")
    release.commit()


def tagged(release: Release) -> None:
    release.git("tag", f"v{xmp.__version__}")


def without_home(release: Release) -> None:
    release.change("pyproject.toml", HOME, 'home = ""')
    release.commit()


LACKS = [
    (uncommitted, "files are not committed"),
    (without_section, f'CHANGELOG.md has no section "## [{xmp.__version__}] - '),
    (tagged, f"the tag v{xmp.__version__} exists: raise __version__"),
    (without_home, "pyproject.toml has no home"),
]
BUILT = [
    "python -m hatchling build -d dist CI=",
    f"python -m twine check --strict dist/xmp_spawn-{xmp.__version__}* CI=",
    "test --wheel CI=true",
]
UPLOADED = f"python -m twine upload dist/xmp_spawn-{xmp.__version__}* CI="
UPLOAD = ("./scripts/publish", "--upload")


@pytest.mark.parametrize(("spoil", "text"), LACKS, ids=[each.__name__ for each, _ in LACKS])
def test_an_upload_is_refused(spoil: Any, text: str, release: Release, terminal: Terminal) -> None:
    spoil(release)
    terminal.start_command(*UPLOAD, cwd=release.root, env={"CI": ""})
    assert terminal.end() == 2
    assert text in terminal.shown
    assert release.called() == []


@pytest.mark.parametrize("spoil", [None, *(each for each, _ in LACKS)])
def test_a_build_says_what_an_upload_lacks(spoil: Any, release: Release) -> None:
    if spoil:
        spoil(release)
    done = subprocess.run(
        ["./scripts/publish"], cwd=release.root, capture_output=True, text=True, timeout=60,
        env={**os.environ, "CI": ""},
    )  # fmt: skip
    assert (done.returncode, release.called()) == (0, BUILT), done.stderr
    said = [text for _, text in LACKS if text in done.stderr]
    assert said == [text for each, text in LACKS if each is spoil]


@pytest.mark.parametrize("way", ["pipe", "ci"])
def test_no_program_uploads(way: str, release: Release, terminal: Terminal) -> None:
    """Neither one that writes the version into a pipe nor a job of CI with a terminal."""
    options: dict[str, Any] = {"stdin": subprocess.PIPE} if way == "pipe" else {}
    ci = "true" if way == "ci" else ""
    process = terminal.start_command(*UPLOAD, cwd=release.root, env={"CI": ci}, **options)
    if process.stdin:
        process.stdin.write(f"{xmp.__version__}\n")
        process.stdin.close()
    assert terminal.end() == 2
    assert "--upload is typed by a person at a terminal: nothing was built" in terminal.shown
    assert release.called() == []


@pytest.mark.parametrize(("typed", "status"), [(xmp.__version__, 0), ("y", 2)])
def test_a_person_types_the_version(
    typed: str, status: int, release: Release, terminal: Terminal
) -> None:
    terminal.start_command(*UPLOAD, cwd=release.root, env={"CI": ""})
    terminal.answer("Type the version: ", typed)
    assert terminal.end() == status, terminal.shown
    assert release.called() == BUILT + ([UPLOADED] if status == 0 else [])
    assert release.git("tag") == (f"v{xmp.__version__}\n" if status == 0 else "")
