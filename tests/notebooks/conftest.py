"""Cells in real kernels."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.stage import Python

Kernel = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def kernel(python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Run cells in a kernel: ``kernel(*cells)``, and the options of ``messages_of``."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))

    def run(*cells: str, env: dict[str, str] | None = None, **given: Any) -> list[dict[str, Any]]:
        program = str(Path(__file__).parents[1] / "support" / "notebook_kernel.py")
        stdin = json.dumps({"cells": cells, "touch": {}, **given})
        done = python(program, stdin=stdin, cwd=tmp_path, timeout=200, env=env)
        messages: list[dict[str, Any]] = done.json()
        return messages

    return run
