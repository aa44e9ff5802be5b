"""``sys.excepthook`` of the program in a replica: called once, after the report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import failure
from xmp._processes.replica.reports import call_hook

pytestmark = pytest.mark.failing


def sets_a_hook(rank: int, folder: str) -> None:
    def hook(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        with open(f"{folder}/{rank}", "a") as file:
            file.write(f"{kind.__name__} {error} {traceback.tb_frame.f_code.co_name}\n")
        raise SystemExit(7)  # of no effect on the report

    sys.excepthook = hook
    if rank == 1:
        raise ValueError("boom")


def test_the_functions_hook_is_called_once(method: str, tmp_path: Path) -> None:
    error = failure(method, sets_a_hook, str(tmp_path))
    assert isinstance(error, xmp.ReplicaRaised)
    assert (tmp_path / "1").read_text() == "ValueError boom sets_a_hook\n"
    assert not (tmp_path / "0").exists()


def called(hook: Any, inherited: Any) -> list[str]:
    seen: list[str] = []
    sys.excepthook = hook(seen)
    call_hook(ValueError("boom"), sys.excepthook if inherited else sys.__excepthook__)
    return seen


@pytest.mark.parametrize(
    ("hook", "inherited", "said"),
    [
        (lambda seen: lambda kind, error, traceback: seen.append(str(error)), False, ["boom"]),
        (lambda seen: lambda kind, error, traceback: seen.append(str(error)), True, []),
        (lambda seen: sys.__excepthook__, False, []),
        (lambda seen: None, False, []),
        (lambda seen: lambda: None, False, []),
    ],
    ids=["its own", "the launcher's", "Python's", "none", "one that raises"],
)
def test_which_hooks_are_called(
    hook: Any, inherited: bool, said: list[str], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert called(hook, inherited) == said
    assert "boom" not in capfd.readouterr().out
