"""Cells in real kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stage import SUPPORT, Python, Stage

Kernel = Callable[..., list[dict[str, Any]]]
PROGRAM = str(SUPPORT / "notebook_kernel.py")


def asked(cells: tuple[str, ...], given: dict[str, Any]) -> str:
    return json.dumps({"cells": cells, "touch": {}, **given}) + "\n"


@pytest.fixture
def kernel(python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Run cells in a kernel: ``kernel(*cells)``, and the options of ``messages_of``."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))

    def run(*cells: str, env: dict[str, str] | None = None, **given: Any) -> list[dict[str, Any]]:
        done = python(PROGRAM, stdin=asked(cells, given), cwd=tmp_path, timeout=200, env=env)
        messages: list[dict[str, Any]] = done.json()
        return messages

    return run


@pytest.fixture(scope="module")
def notebook(shared_stage: Stage) -> Iterator[subprocess.Popen[str]]:
    """The kernel of a module; nothing of it is left when it has ended."""
    folder = shared_stage.folder
    env = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "IPYTHONDIR": str(folder)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with open(folder / "err", "w") as err:
        process = shared_stage.start_command(sys.executable, PROGRAM, env=env, stderr=err, **pipes)
    yield process
    outcome = shared_stage.outcome(process, 60)
    assert outcome.code == 0, (folder / "err").read_text()
    shared_stage.gone()


@pytest.fixture
def shared_kernel(notebook: subprocess.Popen[str], shared_stage: Stage) -> Kernel:
    """Run cells as ``kernel`` does, in the kernel of the module, which keeps all names."""

    def run(*cells: str, **given: Any) -> list[dict[str, Any]]:
        assert notebook.stdin
        assert notebook.stdout
        notebook.stdin.write(asked(cells, given))
        notebook.stdin.flush()
        line = notebook.stdout.readline()
        assert line, (shared_stage.folder / "err").read_text()
        messages: list[dict[str, Any]] = json.loads(line)
        return messages

    return run
