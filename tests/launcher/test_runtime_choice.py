"""A launch that fails says which runtime xmp chose, why, and what else was possible.

Only where the failure concerns the device, the group or the runtime.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

import xmp
from tests.support.launching import never_returns
from tests.support.stage import Stage
from xmp._plan.runtime_choice import add_choice, concerns
from xmp._processes.messages.order import Failure

pytestmark = pytest.mark.failing

LINE = "xmp chose runtime "


def raises(rank: int, words: str = "no CUDA device") -> None:
    raise ValueError(words)


def exits(rank: int) -> None:
    print("libtpu: no chip was found", file=sys.stderr, flush=True)
    os._exit(3)


def waits(rank: int) -> None:
    never_returns()


class Broken:
    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("the process group is missing")


@pytest.fixture(autouse=True)
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch and JAX are installed here, so that several runtimes are possible."""
    monkeypatch.delenv("XMP_RUNTIME", raising=False)


FAILURES: dict[str, tuple[type[Exception], Callable[..., Any], dict[str, Any]]] = {
    "raised": (xmp.ReplicaRaised, raises, {}),
    "died": (xmp.ReplicaDied, exits, {}),
    "restarted": (xmp.ReplicaRaised, raises, {"max_restarts": 1}),
    "loading": (xmp.StartError, raises, {"args": (Broken(),)}),
    "refused": (xmp.PlanError, raises, {"devices": [0]}),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_every_failure_that_it_concerns_has_one_line(kind: str) -> None:
    wanted, fn, options = FAILURES[kind]
    with pytest.raises(wanted) as caught:
        xmp.spawn(fn, nprocs=2 if kind != "refused" else None, **options)
    text = str(caught.value)
    (line,) = [line for line in text.splitlines() if LINE in line]
    assert "also possible: " in line
    assert line.endswith("Pass runtime= to choose yourself.")


@pytest.mark.parametrize(
    "words",
    [
        "no such label",
        "[Errno 28] No space left on device",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "[gloo/pair.cc:553] Connection closed by peer",
        "nodevices",
    ],
)
def test_other_words_do_not_concern_it(words: str) -> None:
    assert not concerns(words)


@pytest.mark.parametrize(
    "words",
    [
        "Default process group has not been initialized, please call init_process_group.",
        "Torch not compiled with CUDA enabled",
        "module 'torch' has no device 'xpu'",
        "Unable to initialize backend 'tpu'",
        "No module named 'torch_xla'",
        "Distributed package doesn't have NCCL built in",
    ],
)
def test_these_words_do(words: str) -> None:
    assert concerns(words)


def test_a_failure_that_it_does_not_concern_says_nothing_of_it() -> None:
    with pytest.raises(xmp.ReplicaRaised) as caught:
        xmp.spawn(raises, ("no such label",), nprocs=2)
    assert LINE not in str(caught.value)
    with pytest.raises(xmp.ReplicaTimeout) as late:
        xmp.spawn(waits, nprocs=2, timeout=1)
    assert LINE not in str(late.value)


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
    with pytest.raises(ValueError, match="no CUDA device") as caught:
        xmp.spawn(raises, nprocs=1)
    assert caught.value.args == ("no CUDA device",)
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


def test_a_refusal_within_a_replica_has_said_it_itself() -> None:
    error = xmp.ReplicaRaised("rank 0 of 2 raised xmp.PlanError: for one device")
    for kind, said in (("ValueError", True), ("xmp.PlanError", False)):
        failure = Failure(0, 0, 7, "raised", error_type=kind, message="for one device")
        error.failures = (failure,)
        add_choice(error, LINE)
        assert (LINE in str(error)) == said
        error.args = ("rank 0 of 2 raised it",)
