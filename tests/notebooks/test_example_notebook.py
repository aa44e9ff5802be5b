"""scripts/examples/digits.ipynb in a real kernel; its first cell installs the wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.notebook_kernel import text_of
from tests.support.stage import ROOT

PATH = ROOT / "scripts/examples/digits.ipynb"
NOTEBOOK = json.loads(PATH.read_text())
CODE = [each for each in NOTEBOOK["cells"] if each["cell_type"] == "code"]
INSTALL, TRAIN, FAIL = ("".join(each["source"]) for each in CODE)


def test_it_is_kept_without_outputs() -> None:
    assert [each["outputs"] for each in CODE] == [[]] * len(CODE)
    assert sum(len(each["source"]) for each in NOTEBOOK["cells"]) < 60


def test_it_has_a_badge_for_colab() -> None:
    text = "".join(NOTEBOOK["cells"][0]["source"])
    assert re.search(r"^\[!\[Open in Colab\]\(\S+\)\]\(https://colab\.research\.\S+\)$", text, re.M)


def test_without_a_wheel_it_installs_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PATH.parent)  # where Jupyter starts the kernel of a notebook
    found: dict[str, Any] = {}
    exec(INSTALL.partition("%pip")[0], found)
    assert Path(found["where"]).resolve() == ROOT


@pytest.mark.peers
@pytest.mark.slow
def test_it_installs_the_wheel_and_trains(
    kernel: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    target = tmp_path / "installed"  # instead of the environment that runs this test
    target.mkdir()
    env = {"PIP_TARGET": str(target), "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1",
           "PYTHONPATH": str(target)}  # fmt: skip
    where = "import xmp; print(xmp.__file__)"
    messages = kernel(INSTALL, where, TRAIN, FAIL, env=env, seconds=180)
    assert [each["traceback"] for each in messages if each["name"] == "error"] == []
    assert Path(text_of(messages, 1).strip()).is_relative_to(target)
    accuracy = re.findall(r"epoch \d: test accuracy (0\.\d+)", text_of(messages, 2))
    assert len(accuracy) == 4
    assert float(accuracy[-1]) > 0.8
    assert re.match(r"rank 2 of 4 .*raised ValueError: no such label: 11", text_of(messages, 3))
