"""The wheel and the source distribution: their files, their metadata, and one from the other."""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import xmp
from tests.support.installed import build
from tests.support.repository import Repository
from tests.support.stage import ROOT

pytestmark = pytest.mark.wheel

INFO = f"xmp_spawn-{xmp.__version__}.dist-info"
INFO_NAMES = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
INFO_FILES = {f"{INFO}/{name}" for name in INFO_NAMES}
KINDS = {".py", ".json", ".md", ".typed"}
HOME = "https://code.example/someone/xmp"


def in_git(root: Path = ROOT) -> dict[str, str]:
    """The files of the commit HEAD: of each the hash of its content, as git makes it."""
    command = ["git", "ls-tree", "-r", "-z", "HEAD"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    lines = [line.partition("\t") for line in done.stdout.split("\0")[:-1]]
    return {name: facts.split()[2] for facts, _, name in lines}


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def in_wheel(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: blob(archive.read(name)) for name in archive.namelist()}


def in_source(source: Path) -> dict[str, str]:
    """Without the folder that all are in."""
    with tarfile.open(source) as archive:
        members = [(each.name.partition("/")[2], archive.extractfile(each)) for each in archive]
        return {name: blob(file.read()) for name, file in members if file}


def beside_git(files: dict[str, str], committed: dict[str, str]) -> set[str]:
    """The files that only one has, or each with another content."""
    return {name for name, _ in files.items() ^ committed.items()}


def beside_git_in_wheel(wheel: Path, root: Path = ROOT) -> set[str]:
    package = {name: known for name, known in in_git(root).items() if name.startswith("xmp/")}
    return beside_git(in_wheel(wheel), package)


def beside_git_in_source(source: Path, root: Path = ROOT) -> set[str]:
    github = ".github/"
    kept = {name: known for name, known in in_git(root).items() if not name.startswith(github)}
    return beside_git(in_source(source), kept)


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    assert beside_git_in_wheel(wheel) == INFO_FILES
    package = {name for name in in_wheel(wheel) if name.startswith("xmp/")}
    assert "xmp/py.typed" in package
    assert {Path(name).suffix for name in package} <= KINDS


def test_the_source_has_what_git_has(source: Path) -> None:
    assert beside_git_in_source(source) == {"PKG-INFO"}


def test_what_git_hides_and_what_is_not_committed_stays_out(tmp_path: Path) -> None:
    papers = ("README.md", "LICENSE", "pyproject.toml", ".gitignore")
    repository = Repository(
        tmp_path / "root", [*papers, "scripts/_release/metadata.py", "xmp/__init__.py"]
    )
    repository.commit()
    repository.plant()
    build(repository.root, tmp_path)
    (source,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    assert beside_git_in_source(source, repository.root) == {"PKG-INFO"}
    assert beside_git_in_wheel(wheel, repository.root) == INFO_FILES


def test_the_source_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    """By pip, with the hatchling that is here: nothing is downloaded."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps"]
    command = [*pip, "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(command, check=True, timeout=170)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_an_index_would_take_both(wheel: Path, source: Path) -> None:
    """``twine check``: the description can be shown, and no warning."""
    command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}, timeout=100
    )
    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout + done.stderr


@pytest.fixture(scope="session")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"{INFO}/METADATA"))


def test_the_metadata_says_what_it_is(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("xmp-spawn", xmp.__version__)
    assert metadata["Author"] == metadata["Maintainer"] == "The xmp authors"
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")


@pytest.mark.parametrize(
    ("platform", "names"),
    [("linux", {"cloudpickle"}), ("darwin", {"cloudpickle", "psutil"})],
)
def test_what_a_platform_needs(platform: str, names: set[str], metadata: Message) -> None:
    facts = {"sys_platform": platform, "extra": ""}
    all_of_them = map(Requirement, metadata.get_all("Requires-Dist", []))
    needed = {each.name for each in all_of_them if not each.marker or each.marker.evaluate(facts)}
    assert needed == names


def unpacked(source: Path, folder: Path, home: str) -> Path:
    """The source distribution as its maintainer has it who knows its home."""
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    project = root / "pyproject.toml"
    text = re.sub(r'^home = ".*"$', f'home = "{home}"', project.read_text(), flags=re.MULTILINE)
    project.write_text(text)
    return root


@pytest.mark.parametrize("home", ["", HOME])
def test_a_page_on_an_index_leads_home_or_nowhere(home: str, source: Path, tmp_path: Path) -> None:
    root = unpacked(source, tmp_path, home)
    command = [sys.executable, "-m", "hatchling", "metadata"]
    done = subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=60)
    said = json.loads(done.stdout)
    assert set(said.get("urls", {})) == (
        {"Source", "Documentation", "Changelog", "Issues", "Security"} if home else set()
    )
    readme = said["readme"]["text"]
    assert f"{home}/blob/v{xmp.__version__}/docs/bench.md)" in readme or not home
    for kind, address in re.findall(r"\]\((https?:)?([^)\s#]+)", readme):
        assert kind or not home, address
    for address in [*said.get("urls", {}).values(), *re.findall(rf"{HOME}[^)\s]*", readme)]:
        _, _, path = address.partition(f"/v{xmp.__version__}/")
        assert (root / re.sub(r"[?#].*", "", path)).exists(), address
