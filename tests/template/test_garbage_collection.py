"""Imports run without garbage collection in a template; replicas have it."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from tests.support.launching import launch
from xmp._processes.template.template_imports import import_all

MODULE = """
import gc
collects = gc.isenabled()
{last}
"""


def test_imports_wait_for_no_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "imported_quietly.py").write_text(MODULE.format(last=""))
    (tmp_path / "imported_badly.py").write_text(MODULE.format(last="raise SystemExit('enough')"))
    failed, took = import_all(["imported_badly", "imported_quietly"])
    assert failed == {"imported_badly": "SystemExit: enough"}
    assert {name for name, _ in took} == {"imported_badly", "imported_quietly"}
    assert not sys.modules.pop("imported_quietly").collects
    assert gc.isenabled()


def collects(_: int) -> bool:
    return gc.isenabled()


def test_replicas_collect(method: str) -> None:
    assert launch(method, collects) == [True, True]
