"""The wheel and the source distribution: their files, their metadata, and one from the other."""

from __future__ import annotations

import email
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
from tests.support.stage import ROOT

pytestmark = pytest.mark.wheel

INFO = f"xmp_spawn-{xmp.__version__}.dist-info"
OURS = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
KINDS = {".py", ".json", ".md", ".typed"}
HOME = "https://code.example/someone/xmp"


def in_git() -> set[str]:
    """The files of this checkout that git has, or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


def members(source: Path) -> set[str]:
    """The files of the source distribution, without the folder that all are in."""
    with tarfile.open(source) as archive:
        return {each.name.partition("/")[2] for each in archive if each.isfile()}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {*archive.namelist()}
    package = {name for name in in_git() if name.startswith("xmp/")}
    assert names == package | OURS | {f"{INFO}/licenses/LICENSE"}
    assert "xmp/py.typed" in names
    assert {Path(name).suffix for name in package} <= KINDS


def test_the_source_has_what_git_has(source: Path) -> None:
    kept = {name for name in in_git() if not name.startswith(".github/")}
    assert members(source) == kept | {"PKG-INFO"}


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
