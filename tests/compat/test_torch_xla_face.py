"""xmp.compat.torch_xla without torch_xla: its face, and what decides before a process exists.

What needs torch_xla itself is in tests/xla/test_compat_torch_xla.py.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

import pytest

import xmp
import xmp.compat.torch_xla as compat
from xmp._words.types import Request

SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}


def test_the_signatures_are_those_of_torch_xla_2_9() -> None:
    def shown(function: Any) -> list[tuple[str, Any]]:
        return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]

    first = [("fn", inspect.Parameter.empty), ("args", ())]
    rest = [("nprocs", None), ("join", True), ("daemon", False), ("start_method", "spawn")]
    assert shown(compat.spawn) == [*first, *rest]
    assert shown(compat.launch) == [*first, rest[3], ("debug_single_process", False)]
    assert compat.MpModelWrapper is xmp.MpModelWrapper
    assert compat.MpSerialExecutor is xmp.MpSerialExecutor


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def launch(request: Request, call: Any, join: bool) -> None:
        calls.append((request, call.settings.start_method, call.settings.daemon, join))

    def here(request: Request, *rest: Any) -> list[None]:
        calls.append((request, "here"))
        return [None]

    monkeypatch.setattr("xmp._calls.host.launch", launch)
    monkeypatch.setattr("xmp._calls.here.run_here", here)
    return calls


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: compat.spawn(abs), (Request(runtime="pjrt"), "spawn", False, True)),
        (
            lambda: compat.spawn(pow, (2,), 4, False, True, "fork"),
            (Request(nprocs=4, runtime="pjrt"), "fork", True, False),
        ),
        (
            lambda: compat.spawn(abs, start_method=None),
            (Request(runtime="pjrt"), "forkserver", False, True),
        ),
        (lambda: compat.spawn(abs, nprocs=1), (Request(nprocs=1, runtime="pjrt"), "here")),
        (lambda: compat.launch(abs), (Request(runtime="pjrt"), "spawn", False, True)),
        (
            lambda: compat.launch(abs, (), "forkserver"),
            (Request(runtime="pjrt"), "forkserver", False, True),
        ),
        (
            lambda: compat.launch(abs, debug_single_process=True),
            (Request(nprocs=1, runtime="pjrt"), "here"),
        ),
    ],
)
def test_what_is_launched(call: Any, expected: Any, asked: list[Any]) -> None:
    assert call() is None
    assert asked == [expected]


def test_under_torchrun_it_runs_here_with_the_local_rank(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "5", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    got: list[Any] = []
    assert compat.launch(lambda *given: got.append((given, os.getpid())), ("a",)) is None
    assert got == [((1, "a"), os.getpid())]
    assert asked == []


def test_under_slurm_it_is_refused(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("xmp._calls.as_rank.check_installed", lambda runtime, facts: None)
    text = "runtime 'pjrt' cannot connect the processes that Slurm has started"
    with pytest.raises(xmp.PlanError, match=text):
        compat.launch(abs)
    assert asked == []


def test_spmd_has_one_process(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_USE_SPMD", "1")
    with pytest.raises(NotImplementedError, match="unset XLA_USE_SPMD"):
        compat.launch(abs)
    assert asked == []


def test_without_torch_xla_nothing_starts() -> None:
    with pytest.raises(xmp.PlanError, match="torch_xla, which is not installed"):
        compat.spawn(abs)


def test_a_misspelt_keyword_gets_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"Did you mean 'start_method'\?"):
        compat.spawn(abs, startmethod="fork")  # type: ignore[call-overload]
