"""``error.locals``: what the failed replica's innermost frames had; no code of the user runs."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy
import pytest

import xmp
from tests.support.launching import failure
from tests.support.lazily import lazily
from xmp._os.frame_values import taken
from xmp._plan.secrets import HIDDEN
from xmp._processes.report.short_text import library_of
from xmp._processes.report.variables import loaded

torch = lazily("torch")


class Foreign(dict[str, int]):
    """All that a value of the user's may do when it is shown."""

    def _never(self, *_: object) -> Any:
        raise AssertionError("the user's code was called")

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __getattr__ = _never  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]
    shape = dtype = property(_never)


class Tensor:
    shape = property(Foreign._never)


def modes() -> Any:
    class Modes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("the user's mode was asked")

    return Modes()


def variables_of(**given: Any) -> dict[str, Any]:
    def raising(given: dict[str, Any]) -> None:
        exec("raise ValueError", {}, given)

    try:
        raising(given)
    except ValueError as error:
        return loaded(taken(error, library_of))[0]
    raise AssertionError("nothing was raised")


PLAIN = {
    "none": None,
    "truth": True,
    "number": -(2**200),
    "real": 0.1,
    "infinite": float("inf"),
    "complex": 1 + 2j,
    "text": "ä\udc80'\n",
    "bytes": b"\0\xff",
    "list": [1, [2, "b"]],
    "dict": {1: "a", ("b", 2): {None: 3}},
    "set": {1, 2},
    "frozen": frozenset({"a"}),
    "tuple": (1, (2,)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_arrive_as_they_are(name: str) -> None:
    found = variables_of(value=PLAIN[name])["value"]
    assert (type(found), found) == (type(PLAIN[name]), PLAIN[name])


SHOWN: dict[str, tuple[Any, str]] = {
    "user": (Foreign(a=1), f"<{__name__}.Foreign>"),
    "same name": (Tensor(), f"<{__name__}.Tensor>"),
    "array": (numpy.zeros((2, 3)), "<numpy.ndarray (2, 3) float64>"),
    "scalar": (numpy.float64(2.5), "numpy.float64(2.5)"),
    "function of numpy": (numpy.add, "<numpy.ufunc>"),
    "tensor": (lambda: torch.ones(2, 5), "<torch.Tensor (2, 5) torch.float32 on cpu>"),
    "weights": (
        lambda: torch.nn.Parameter(torch.ones(3)),
        "<torch.nn.parameter.Parameter (3,) torch.float32 on cpu>",
    ),
    "huge": (1 << 100_000, "<large int>"),
    "long": ("y" * 10**6, f"'{'y' * 256}'… (1,000,000 characters)"),
    "raw": (bytes(10**6), "<bytes, 1,000,000>"),
    "module": (os, "<module>"),
    "deep": ([[[1, 2]]], "[[<list, 2 items>]]"),
    "many": (list(range(18)), f"{[*range(16)]}"[:-1] + ", … 2 more]"),
    "inside": ([Foreign()], f"[<{__name__}.Foreign>]"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_others_are_described(name: str) -> None:
    value, wanted = SHOWN[name]
    value = value() if name in ("tensor", "weights") else value
    with modes():
        assert repr(variables_of(value=value)["value"]) == wanted


def test_secrets_are_masked_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_TOKEN", "from-the-environment")
    found = variables_of(
        api_key="sesame-1",
        copy="sesame-1",
        url="http://host/?q=sesame-1",
        raw=b"sesame-1",
        config={"password": ["sesame-2"], "lr": 0.1},
        other=("sesame-2",),
        header="from-the-environment",
        credentials={"user": "me", "word": "sesame-3"},
        again="sesame-3",
    )
    assert "sesame" not in repr(found)
    assert "from-the" not in repr(found)
    assert found["config"]["lr"] == 0.1


IN_CONTAINERS: dict[str, tuple[Any, Any]] = {
    "after a flag": (["curl", "--password", "sesame", "-v"], ["curl", "--password", HIDDEN, "-v"]),
    "after = of a flag": (("--token=sesame", "x"), (f"--token={HIDDEN}", "x")),
    "after another flag": (["--lr", "sesame"], ["--lr", "sesame"]),
    "no flag": (["password", "lr", "steps"], ["password", "lr", "steps"]),
    "a flag at the end": (["a", "b", "--token"], ["a", "b", "--token"]),
    "described": (
        [{"name": "db_password", "value": "sesame"}],
        [{"name": "db_password", "value": HIDDEN}],
    ),
    "described, no secret": ([{"name": "lr", "value": "0.1"}], [{"name": "lr", "value": "0.1"}]),
    "pairs": ([("token", "sesame"), ("lr", 1)], [("token", HIDDEN), ("lr", 1)]),
    "a pair": (["api_key", 17], ["api_key", HIDDEN]),
    "empty": ([[], (), {}], [[], (), {}]),
}


@pytest.mark.parametrize("case", IN_CONTAINERS)
def test_secrets_are_masked_by_their_place(case: str) -> None:
    value, shown = IN_CONTAINERS[case]
    assert variables_of(value=value)["value"] == shown


def test_what_is_masked_by_its_place_is_masked_elsewhere() -> None:
    found = variables_of(
        again=["sesame-1", "x sesame-2"],
        cmd=["curl", "--password", "sesame-1"],
        rows=[{"name": "db_password", "value": "sesame-2"}],
        other="sesame-3",
        pairs=[("token", "sesame-3")],
    )
    assert "sesame" not in repr(found)


def test_all_of_it_is_at_most_16_kib() -> None:
    def raising() -> None:
        exec("raise ValueError", {}, {f"v{i}": ["x" * 200] * 16 for i in range(90)})

    with pytest.raises(ValueError) as caught:
        raising()
    text = taken(caught.value, library_of)
    assert 12 * 1024 < len(text) <= 16 * 1024
    assert len(loaded(text)[0]) > 3


@pytest.mark.parametrize(
    "text", ["", "[", "[" * 20_000, "[[1]]", '[["a", [["b", ["no", 1]]]]]', "3"]
)
def test_what_no_replica_sends_is_nothing(text: str) -> None:
    assert loaded(text) == ()


def fails(rank: int, steps: int) -> None:
    batch = torch.ones(steps, 2)
    if rank == 1:
        raise ValueError(str(batch.sum()))
    signal.pause()


def outer(rank: int, steps: int) -> None:
    model = Foreign()
    fails(rank, steps)
    del model


@pytest.mark.failing
def test_the_error_has_them(method: str) -> None:
    error = failure(method, outer, 4)
    inner, called = error.locals
    assert inner["rank"] == 1
    assert inner["steps"] == 4
    assert repr(inner["batch"]) == "<torch.Tensor (4, 2) torch.float32 on cpu>"
    assert repr(called["model"]) == f"<{__name__}.Foreign>"
    assert inner.where.endswith(" in fails")


@pytest.mark.failing
@pytest.mark.parametrize("word", ["off", "0", "False", " OFF"])
def test_they_can_be_switched_off(word: str) -> None:
    with pytest.raises(xmp.ReplicaRaised) as caught:
        xmp.spawn(outer, (4,), nprocs=2, runtime="cpu", env={"XMP_LOCALS": word})
    assert caught.value.locals == ()
