"""A launch that fails says which runtime xmp chose for it, why, and what else was possible."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

import xmp
from tests.support.launching import never_returns
from tests.support.stage import Stage

pytestmark = pytest.mark.failing

LINE = "xmp chose runtime "


def raises(rank: int, *args: object) -> None:
    raise ValueError("any")


def exits(rank: int) -> None:
    os._exit(3)


def waits(rank: int) -> None:
    never_returns()


class Broken:
    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("cannot be loaded")


@pytest.fixture(autouse=True)
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch and JAX are installed here, so that several runtimes are possible."""
    monkeypatch.delenv("XMP_RUNTIME", raising=False)


FAILURES: dict[str, tuple[type[Exception], Callable[..., Any], dict[str, Any]]] = {
    "raised": (xmp.ReplicaRaised, raises, {}),
    "died": (xmp.ReplicaDied, exits, {}),
    "timeout": (xmp.ReplicaTimeout, waits, {"timeout": 1}),
    "restarted": (xmp.ReplicaRaised, raises, {"max_restarts": 1}),
    "loading": (xmp.StartError, raises, {"args": (Broken(),)}),
    "refused": (xmp.PlanError, raises, {"devices": [0]}),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_every_failure_has_one_line(kind: str) -> None:
    wanted, fn, options = FAILURES[kind]
    with pytest.raises(wanted) as caught:
        xmp.spawn(fn, nprocs=2 if kind != "refused" else None, **options)
    text = str(caught.value)
    (line,) = [line for line in text.splitlines() if LINE in line]
    assert "also possible: " in line
    assert line.endswith("Pass runtime= to choose yourself.")


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_who_has_named_it_reads_nothing_of_that(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"runtime": "cpu"} if how == "argument" else {}
    if how == "variable":
        monkeypatch.setenv("XMP_RUNTIME", "cpu")
    with pytest.raises(xmp.ReplicaRaised) as caught:
        xmp.spawn(raises, nprocs=2, **named)
    assert LINE not in str(caught.value)


def test_what_the_program_ends_itself_says_nothing_of_that() -> None:
    context = xmp.spawn(waits, nprocs=2, join=False)
    context.terminate()
    with pytest.raises(xmp.ReplicaDied) as caught:
        context.join()
    assert LINE not in str(caught.value)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before 3.11")
def test_in_the_caller_it_is_a_note() -> None:
    with pytest.raises(ValueError, match="any") as caught:
        xmp.spawn(raises, nprocs=1)
    assert caught.value.args == ("any",)
    (note,) = caught.value.__notes__
    assert LINE in note


BOTH = """
    import jax, torch
    import xmp

    def fn(rank):
        return torch.distributed.get_rank()

    if __name__ == "__main__":
        try:
            xmp.spawn(fn, nprocs=2)
        except xmp.ReplicaRaised as error:
            print(error)
"""


def test_torch_in_replicas_that_are_jaxs(stage: Stage) -> None:
    out = stage.run(BOTH, timeout=90).out
    assert "Default process group has not been initialized" in out
    (chosen,) = [line for line in out.splitlines() if line.startswith("xmp chose runtime ")]
    assert chosen.startswith("xmp chose runtime 'jax' (jax and torch are loaded; jax ")
    assert "also possible: cpu" in chosen
