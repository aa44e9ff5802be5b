"""scripts/publish: it builds the commit, tries what it built, and a person alone uploads that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.repository import Repository
from tests.support.stage import ROOT
from tests.support.terminal import Terminal

CALL = '#!/bin/sh\necho "$(basename "$0") $* CI=${CI:-}" | sed "s|$PWD/||; s|ROOT/||" >>"CALLS"\n'
LANE = CALL.replace("$* ", "$* XMP_TEST_DIST=$XMP_TEST_DIST ")
PYTHON = f"""{CALL}
case "$2 $3" in
    "hatchling build")
        find . ! -type d | LC_ALL=C sort >"CALLS.built"
        cat README.md xmp/__init__.py >>"CALLS.built"
        mkdir -p "$5" && touch "$5/xmp_spawn-VERSION.tar.gz" ;;
esac
"""
PAPERS = f'#!/bin/sh\n[ "$1" = -m ] || exec {sys.executable} "$@"\n'
HOME = 'home = "https://code.example/xmp"'


class Release(Repository):
    """With our papers; the programs for building and uploading only write a line."""

    def __init__(self, folder: Path) -> None:
        papers = ("CHANGELOG.md", "README.md", ".gitignore", "scripts/_release/papers.py")
        super().__init__(folder / "root", ("scripts/publish", *papers))
        self.calls = folder / "calls"
        self.write("xmp/__init__.py", f'__version__ = "{xmp.__version__}"  # as in ours\n')
        project = (ROOT / "pyproject.toml").read_text()
        self.write("pyproject.toml", re.sub(r"(?m)^home = .*$", HOME, project))
        environment = (ROOT / "scripts/_env.sh").read_text()
        self.write("scripts/_env.sh", f"{environment}\nmake_wheel_environment() {{ :; }}\n")
        self.program("scripts/test", LANE)
        self.program(".venv-wheel/bin/python", PAPERS + PYTHON.removeprefix("#!/bin/sh\n"))
        self.commit()

    def program(self, name: str, text: str) -> None:
        text = text.replace("CALLS", str(self.calls)).replace("ROOT", str(self.root))
        self.write(name, text.replace("VERSION", xmp.__version__))
        (self.root / name).chmod(0o755)

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def publish(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Build, and upload nothing."""
        return subprocess.run(
            ["./scripts/publish"], cwd=self.root, capture_output=True, text=True, timeout=60,
            env={**os.environ, "CI": "", **variables},
        )  # fmt: skip


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


TAG = f"v{xmp.__version__}"
HEADING = f"## [{xmp.__version__}] - "
NO_SECTION = f'CHANGELOG.md has no section "{HEADING}'
NO_HOME = "pyproject.toml has no home"
UNCOMMITTED = "files are not committed"


def committed(name: str, old: str, new: str) -> Callable[[Release], None]:
    def spoil(release: Release) -> None:
        release.change(name, old, new)
        release.commit()

    return spoil


def uncommitted(release: Release) -> None:
    release.write("notes.txt", "not yet\n")


def untracked_not_shown(release: Release) -> None:
    release.git("config", "status.showUntrackedFiles", "no")
    release.write("xmp/notes.txt", "not yet\n")


def not_looked_at(release: Release) -> None:
    release.git("update-index", "--assume-unchanged", "CHANGELOG.md")


def on_no_branch(release: Release) -> None:
    release.git("checkout", "-q", "--detach")


def tagged(release: Release) -> None:
    release.git("tag", TAG)


def tagged_there(release: Release) -> None:
    release.git("clone", "-q", "--bare", ".", "../there")
    release.git("remote", "add", "origin", "../there")
    release.git("--git-dir", "../there", "tag", TAG)


def remote_is_silent(release: Release) -> None:
    release.git("remote", "add", "origin", "../nothing")


LACKS = {
    "uncommitted": (uncommitted, UNCOMMITTED),
    "untracked files not shown": (untracked_not_shown, UNCOMMITTED),
    "assumed unchanged": (not_looked_at, "git does not look whether some files have changed"),
    "on no branch": (on_no_branch, "HEAD is on no branch"),
    "no section": (committed("CHANGELOG.md", HEADING, "## Soon "), NO_SECTION),
    "no date": (committed("CHANGELOG.md", HEADING, f"{HEADING}2026-02-30 "), NO_SECTION),
    "tagged": (tagged, f"the tag {TAG} exists: raise __version__"),
    "tagged there": (tagged_there, f"the tag {TAG} exists: raise __version__"),
    "remote is silent": (remote_is_silent, "the remote origin does not say whether"),
    "no home": (committed("pyproject.toml", HOME, 'home = ""'), NO_HOME),
    "no home in other quotes": (committed("pyproject.toml", HOME, "home = ''"), NO_HOME),
    "no home, a comment": (committed("pyproject.toml", HOME, 'home = ""  # none'), NO_HOME),
}
BUILT = [
    "python -m hatchling build -d dist CI=",
    f"python -m twine check --strict dist/xmp_spawn-{xmp.__version__}.tar.gz CI=",
    "test --wheel XMP_TEST_DIST=dist CI=true",
]
UPLOADED = f"python -m twine upload dist/xmp_spawn-{xmp.__version__}.tar.gz CI="
UPLOAD = ("./scripts/publish", "--upload")


@pytest.mark.parametrize("name", LACKS)
def test_an_upload_is_refused(name: str, release: Release, terminal: Terminal) -> None:
    spoil, text = LACKS[name]
    spoil(release)
    terminal.start_command(*UPLOAD, cwd=release.root, env={"CI": ""})
    assert terminal.end() == 2
    assert text in terminal.shown
    assert release.called() == []


@pytest.mark.parametrize("name", [None, "uncommitted", "no section", "tagged", "no home"])
def test_a_build_says_what_an_upload_lacks(name: str | None, release: Release) -> None:
    if name:
        LACKS[name][0](release)
    done = release.publish()
    assert (done.returncode, release.called()) == (0, BUILT), done.stderr
    said = {text for _, text in LACKS.values() if text in done.stderr}
    assert said == ({LACKS[name][1]} if name else set())


def test_what_is_built_is_the_commit(release: Release) -> None:
    names = release.git("ls-files").splitlines()
    texts = [(release.root / name).read_text() for name in ("README.md", "xmp/__init__.py")]
    release.plant()
    assert release.publish().returncode == 0
    built = Path(f"{release.calls}.built").read_text()
    assert built == "".join(f"./{name}\n" for name in sorted(names)) + "".join(texts)


FAILING_GIT = """#!/bin/sh
case $1 in WORD) echo "git is broken" >&2; exit 1 ;; esac
exec GIT "$@"
"""
ASKED = re.findall(r"\bask ([a-z][a-z-]+)", (ROOT / "scripts/publish").read_text())


@pytest.mark.parametrize("word", sorted({*ASKED}))
def test_a_git_that_fails_refuses(word: str, release: Release, tmp_path: Path) -> None:
    git = tmp_path / "bin/git"
    git.parent.mkdir()
    git.write_text(FAILING_GIT.replace("WORD", word).replace("GIT", str(shutil.which("git"))))
    git.chmod(0o755)
    done = release.publish(PATH=f"{git.parent}:{os.environ['PATH']}")
    assert done.returncode == 2
    assert f"git {word} failed, and nothing goes on" in done.stderr


def tools_without_git(folder: Path) -> str:
    folder.mkdir()
    for name in ("dirname", "mktemp", "sed", "tar"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return str(folder)


NO_GIT: dict[str, Callable[[Path], dict[str, str]]] = {
    "another folder": lambda folder: {"GIT_DIR": "/nonexistent"},
    "not installed": lambda folder: {"PATH": tools_without_git(folder / "bin")},
    "another owner": lambda folder: {
        "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    },
}


@pytest.mark.parametrize("name", NO_GIT)
def test_a_folder_that_git_does_not_read_is_refused(
    name: str, release: Release, terminal: Terminal, tmp_path: Path
) -> None:
    variables = {"CI": "", **NO_GIT[name](tmp_path)}
    terminal.start_command(*UPLOAD, cwd=release.root, env=variables)
    assert terminal.end() == 2
    assert "git rev-parse failed, and nothing goes on" in terminal.shown
    assert release.called() == []


@pytest.mark.parametrize("around", [False, True])
def test_a_folder_without_its_repository_is_refused(around: bool, release: Release) -> None:
    """Sources that were unpacked somewhere, maybe in another repository."""
    shutil.rmtree(release.root / ".git")
    if around:
        release.git("init", "-q", "..")
        release.commit()
    done = release.publish(GIT_CEILING_DIRECTORIES=str(release.root.parents[1]))
    said = "is part of another repository" if around else "git rev-parse failed"
    assert (done.returncode, release.called()) == (2, [])
    assert said in done.stderr


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
    assert release.git("tag") == (f"{TAG}\n" if status == 0 else "")


MEANWHILE = {
    "git commit -q --allow-empty -m later": "HEAD is no longer ",
    f"git tag {TAG}": f"the tag {TAG} exists",
    "echo later >>xmp/__init__.py": UNCOMMITTED,
    f"echo later >dist/xmp_spawn-{xmp.__version__}.tar.gz": "dist/ has changed since",
    f"touch dist/xmp_spawn-{xmp.__version__}-py3.whl": "dist/ has changed since",
}


@pytest.mark.parametrize("command", MEANWHILE)
def test_what_changes_while_the_tests_run_is_not_uploaded(
    command: str, release: Release, terminal: Terminal
) -> None:
    """The stub of the tests does what a person does at another terminal."""
    release.program("scripts/test", f"{LANE}{command}\n")
    release.commit()
    who = {
        f"GIT_{who}_{kind}": "me" for who in ("AUTHOR", "COMMITTER") for kind in ("NAME", "EMAIL")
    }
    terminal.start_command(*UPLOAD, cwd=release.root, env={"CI": "", **who})
    terminal.answer("Type the version: ", xmp.__version__)
    assert terminal.end() == 2
    assert MEANWHILE[command] in terminal.shown
    assert release.called() == BUILT
