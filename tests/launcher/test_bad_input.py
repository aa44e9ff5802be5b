"""What does not fit is refused by one error, before any process exists."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

import xmp
from tests.support.fresh import in_fresh_interpreter
from tests.support.launching import nothing_started
from tests.support.stage import Script

pytestmark = pytest.mark.first_pass


def fn(rank: int) -> int:
    return rank


SPAWN: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"nprocs": 0}, xmp.PlanError, ["nprocs", "0"]),
    ({"nprocs": -3}, xmp.PlanError, ["nprocs", "-3"]),
    ({"nprocs": 2.5}, TypeError, ["nprocs", "2.5"]),
    ({"nprocs": "4"}, TypeError, ["nprocs", "'4'"]),
    ({"nprocs": True}, TypeError, ["nprocs", "True"]),
    ({"args": "ab"}, TypeError, ["args", "tuple"]),
    ({"args": {"a": 1}}, TypeError, ["args", "tuple"]),
    ({"args": 3}, TypeError, ["args", "tuple"]),
    ({"args": iter([1])}, TypeError, ["args", "tuple"]),
    ({"args": None}, TypeError, ["args", "tuple"]),
    ({"kwargs": [("a", 1)]}, TypeError, ["kwargs"]),
    ({"fn": None}, TypeError, ["fn", "callable", "None"]),
    ({"fn": "train"}, TypeError, ["fn", "callable", "train"]),
    ({"fn": fn(3)}, TypeError, ["fn", "callable", "3"]),
    ({"start_method": "thread"}, xmp.PlanError, ["start_method", "thread", "forkserver", "fork"]),
    ({"runtime": "tpux"}, xmp.PlanError, ["runtime", "tpux", "cpu"]),
    ({"nproc": 3}, TypeError, ["nproc"]),
    ({"method": "spawn"}, TypeError, ["method"]),
    ({"devices": [99999]}, xmp.PlanError, ["devices", "99999"]),
    ({"devices": [0, 0]}, xmp.PlanError, ["devices", "0"]),
    ({"devices": [-1]}, xmp.PlanError, ["devices", "-1"]),
    ({"devices": "0,x"}, xmp.PlanError, ["devices", "x"]),
    ({"devices": [0], "nprocs": 2}, xmp.PlanError, ["devices", "2"]),
    ({"devices": [0.5]}, TypeError, ["devices", "0.5"]),
    ({"devices": 5}, TypeError, ["devices", "5", "[4, 5]"]),
    ({"devices": [0], "runtime": "cpu"}, xmp.PlanError, ["devices", "cpu"]),
    ({"env": {"RANK": "3"}}, xmp.PlanError, ["RANK"]),
    ({"env": {"MASTER_PORT": "3"}}, xmp.PlanError, ["MASTER_PORT"]),
    ({"env": {"A": 3}}, TypeError, ["env", "A", "3"]),
    ({"env": "A=3"}, TypeError, ["env"]),
    *(({"env": {name: "1"}}, xmp.PlanError, ["env", repr(name)]) for name in ("", "A=B", "A\0")),
    *(({"env": {"A": value}}, xmp.PlanError, ["env", "A"]) for value in ("\0", "\ud800")),
    ({"env": lambda: {"A": "1"}}, TypeError, ["env= is called with the local rank", "too many"]),
    ({"events": lambda: None}, TypeError, ["events= is called with each event", "too many"]),
    ({"seed": "x"}, TypeError, ["seed", "x"]),
    ({"seed": 2**64}, xmp.PlanError, ["seed=18446744073709551616", "2**64 - 1"]),
    ({"nprocs": numpy.array([2, 3])}, TypeError, ["nprocs", "ndarray"]),
    ({"threads": 0}, xmp.PlanError, ["threads", "0"]),
    ({"threads": 10**30}, xmp.PlanError, ["threads", "65536"]),
    ({"timeout": float("inf")}, xmp.PlanError, ["timeout=inf", "None"]),
    ({"grace": -1}, xmp.PlanError, ["grace", "-1"]),
    ({"backend": "nonsense"}, xmp.PlanError, ["backend", "nonsense"]),
    ({"kwargs": {1: 2}}, TypeError, ["kwargs", "1"]),
    ({"start_method": 5}, TypeError, ["start_method", "5"]),
    ({"runtime": 5}, TypeError, ["runtime", "5"]),
    ({"devices": []}, xmp.PlanError, ["devices"]),
    ({"grace": "x"}, TypeError, ["grace", "x"]),
    ({"grace": float("inf")}, xmp.PlanError, ["grace", "inf"]),
    ({"timeout": 0}, xmp.PlanError, ["timeout", "0", "None"]),
    ({"timeout": "5"}, TypeError, ["timeout", "'5'", "seconds"]),
    ({"timeout": 1j}, TypeError, ["timeout", "1j"]),
    ({"timeout": Decimal("NaN")}, xmp.PlanError, ["timeout", "NaN"]),
    ({"timeout": 10**400}, xmp.PlanError, ["timeout", "1e9"]),
    ({"grace": numpy.complex64(1)}, TypeError, ["grace", "complex64"]),
    ({"start_timeout": -1}, xmp.PlanError, ["start_timeout", "-1", "None"]),
    ({"start_timeout": True}, TypeError, ["start_timeout", "True"]),
    ({"hang_timeout": float("nan")}, xmp.PlanError, ["hang_timeout", "nan"]),
    ({"hang_timeout": float("inf")}, xmp.PlanError, ["hang_timeout", "inf", "None"]),
    ({"hang_timeout": 0.01}, xmp.PlanError, ["hang_timeout", "0.01", "0.1"]),
    ({"progress": "yes"}, TypeError, ["progress", "'yes'", "None"]),
    ({"progress": 1}, TypeError, ["progress", "1"]),
    ({"hang_timeout": [1]}, TypeError, ["hang_timeout", "[1]"]),
    ({"max_restarts": -1}, xmp.PlanError, ["max_restarts", "-1", "0"]),
    ({"max_restarts": True}, TypeError, ["max_restarts", "True"]),
    ({"max_restarts": 1.5}, TypeError, ["max_restarts", "1.5"]),
    ({"max_restarts": None}, TypeError, ["max_restarts", "None", "0"]),
    ({"log_dir": 5}, TypeError, ["log_dir", "5", "folder"]),
    ({"log_dir": ""}, xmp.PlanError, ["log_dir", "folder"]),
    ({"log_dir": b"x"}, TypeError, ["log_dir", "b'x'"]),
    ({"log_dir": "a\0b"}, xmp.PlanError, ["log_dir", "folder"]),
    ({"log_dir": __file__}, xmp.PlanError, ["log_dir", "test_bad_input.py", "folder"]),
    ({"log_dir": "/proc/nowhere/logs"}, xmp.PlanError, ["log_dir", "/proc/nowhere", "folder"]),
    ({"prefix": 5}, TypeError, ["prefix", "5", "string"]),
    ({"prefix": "[{rnk}] "}, xmp.PlanError, ["prefix", "{rnk}", "{rank}"]),
    ({"prefix": "{rank.real}"}, xmp.PlanError, ["prefix", "{rank.real}", "{host}"]),
    ({"prefix": "{}"}, xmp.PlanError, ["prefix", "{local_rank}"]),
    ({"prefix": "{"}, xmp.PlanError, ["prefix", "{rank}"]),
    ({"prefix": "{rank:x9}"}, xmp.PlanError, ["prefix", "{rank:x9}"]),
    ({"prefix": "{rank}\n"}, xmp.PlanError, ["prefix", "line"]),
    ({"prefix": "\udc80 "}, xmp.PlanError, ["prefix", "line"]),
    ({"show": "x"}, xmp.PlanError, ["show", "x", "all", "none"]),
    ({"show": ""}, xmp.PlanError, ["show", "''", "all"]),
    ({"show": "3-1"}, xmp.PlanError, ["show", "3-1", "0,2-3"]),
    ({"show": [2]}, xmp.PlanError, ["show", "2", "0 to 1"]),
    ({"show": "0-5"}, xmp.PlanError, ["show", "2", "0 to 1"]),
    ({"show": -1}, xmp.PlanError, ["show", "-1", "0 to 1"]),
    ({"show": [0.5]}, TypeError, ["show", "0.5"]),
    ({"show": [None]}, TypeError, ["show", "None"]),
    ({"show": True}, TypeError, ["show", "True"]),
]


def called(case: dict[str, Any]) -> Any:
    given = {"fn": fn, "nprocs": 2, "runtime": "cpu", **case}
    if "devices" in case:
        given["runtime"] = case.get("runtime", "fake")
        given["nprocs"] = case.get("nprocs")
    return xmp.spawn(given.pop("fn"), given.pop("args", ()), **given)


@pytest.mark.parametrize(("case", "kind", "words"), SPAWN, ids=[str(c[0])[:40] for c in SPAWN])
def test_spawn_refuses(case: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    with nothing_started(), pytest.raises(kind) as caught:
        called(case)
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_tensor_that_has_an_index_may_be_no_whole_number() -> None:
    import torch

    words = ["nprocs", "tensor(2.7000)"]
    test_spawn_refuses({"nprocs": torch.tensor(2.7)}, TypeError, words)


@pytest.mark.parametrize(
    "number", [numpy.float32(30), numpy.int64(30), Fraction(61, 2), Decimal("30.5")], ids=repr
)
def test_any_real_number_is_a_number_of_seconds(number: Any) -> None:
    limits = dict.fromkeys(("timeout", "start_timeout", "hang_timeout", "grace"), number)
    assert list(xmp.spawn(fn, nprocs=2, runtime="cpu", **limits)) == [0, 1]
    context = xmp.spawn(fn, nprocs=2, runtime="cpu", join=False)
    assert context.join(timeout=number, grace_period=number)


# --- functions that replicas cannot call ---------------------------------------------------------


def takes_nothing() -> None:
    pass


def takes_more(rank: int, cfg: Any, *, key: int) -> None:
    pass


def generates(rank: int) -> Iterator[int]:
    yield rank


async def awaits(rank: int) -> int:
    return rank


async def generates_later(rank: int) -> Any:
    yield rank


class Trainer:
    def __init__(self, rank: int, cfg: Any) -> None:
        pass

    def step(self) -> None:
        pass

    async def __call__(self, rank: int) -> None:
        pass


def adds_one(inner: Any) -> Any:
    """A decorator after which the declared parameters are not those of the call."""

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner("added", *args, **kwargs)

    return outer


@adds_one
def gets_one_more(added: str, rank: int) -> tuple[str, int]:
    return added, rank


UNFIT: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[str]]] = [
    (takes_nothing, (), {}, ["takes_nothing()", "takes_nothing(rank)", "first parameter"]),
    (fn, (1,), {}, ["fn(rank)", "fn(rank, args[0])", "too many"]),
    (takes_more, (), {"key": 1}, ["takes_more(rank, cfg, *, key)", "'cfg'"]),
    (takes_more, (1,), {"kye": 1}, ["kye=…", "'key'"]),
    (fn, (), {"rank": 1}, ["fn(rank, rank=…)", "multiple values"]),
    (functools.partial(takes_more, key=1), (), {}, ["partial(takes_more)", "'cfg'"]),
    (functools.partial(fn, rank=1), (), {}, ["partial(fn)"]),
    (Trainer, (), {}, ["Trainer(rank, cfg)", "'cfg'"]),
    (Trainer(0, None).step, (), {}, ["step()", "step(rank)"]),
    (lambda: None, (), {}, ["<lambda>()"]),
    (generates, (), {}, ["generates", "generator function"]),
    (generates_later, (), {}, ["generates_later", "generator function"]),
    (functools.partial(awaits), (), {}, ["awaits", "async function", "asyncio.run"]),
    (Trainer(0, None), (), {}, ["Trainer", "async function"]),
]


@pytest.mark.parametrize("nprocs", [1, 2])
@pytest.mark.parametrize(("unfit", "args", "kwargs", "words"), UNFIT)
def test_a_function_that_replicas_cannot_call_is_refused(
    unfit: Any, args: tuple[Any, ...], kwargs: dict[str, Any], words: list[str], nprocs: int
) -> None:
    with nothing_started(), pytest.raises(TypeError) as caught:
        xmp.spawn(unfit, args, nprocs=nprocs, kwargs=kwargs, runtime="cpu")
    assert type(caught.value) is TypeError
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize("name", ["fn", "kwargs", "timeout", "nprocs", "bind", "env", "log_dir"])
def test_an_object_that_cannot_be_shown_is_named_by_its_type(name: str) -> None:
    class Unshown:
        def __repr__(self) -> str:
            raise ValueError("no text")

    for value in (Unshown(), 10**5000 if name == "log_dir" else (3, {"x": Unshown()})):
        with nothing_started(), pytest.raises(TypeError, match=rf"^{name} must be .*, not \w+"):
            xmp.spawn(**{"fn": fn, name: value})


def test_a_default_that_is_slow_to_show_is_not_shown() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("shown")

    def main(rank: int, big: Any = Loud()) -> None:  # noqa: B008
        pass

    with pytest.raises(TypeError, match=r"main\(rank, big\)"):
        xmp.start_processes(main, (1, 2), nprocs=2)


def test_a_declaration_that_does_not_hold_is_not_believed() -> None:
    shown = functools.partial(fn)
    shown.__signature__ = 5  # type: ignore[attr-defined]
    assert list(xmp.spawn(gets_one_more, nprocs=2, runtime="cpu")) == [("added", 0), ("added", 1)]
    assert list(xmp.spawn(shown, nprocs=2, runtime="cpu")) == [0, 1]


# --- start_processes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nprocs", "kind"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), ("2", TypeError)]
)
def test_start_processes_refuses_numbers(nprocs: Any, kind: type[Exception]) -> None:
    with nothing_started(), pytest.raises(kind, match="nprocs"):
        xmp.start_processes(fn, nprocs=nprocs)


def test_start_processes_refuses_what_is_no_function_or_tuple() -> None:
    with nothing_started():
        with pytest.raises(TypeError, match="args"):
            xmp.start_processes(fn, args=5, nprocs=2)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="fn"):
            xmp.start_processes(5, nprocs=2)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="start_method"):
            xmp.start_processes(fn, nprocs=2, start_method="thread")
        with pytest.raises(TypeError):
            xmp.start_processes(fn, nprocs=2, runtime="cpu")  # type: ignore[call-arg]


FIRST_CALL = """
import threading
import psutil
import xmp

def fn(rank, thing):
    pass

if __name__ == "__main__":
    try:
        xmp.spawn(fn, (threading.Lock(),), nprocs=2, runtime="cpu")
    except TypeError as error:
        print(psutil.Process().children(recursive=True), error)
"""


def test_what_cannot_be_sent_leaves_no_template_of_a_first_launch(script: Script) -> None:
    ended = script(FIRST_CALL)
    assert ended.out.startswith("[] "), ended.out + ended.err
    assert "lock" in ended.out


def test_plan_error_is_a_value_error() -> None:
    assert issubclass(xmp.PlanError, ValueError)
    assert issubclass(xmp.ReplicaError, RuntimeError)
    assert issubclass(xmp.ReplicaTimeout, TimeoutError)


@pytest.mark.parametrize("what", [3, None, ""])
def test_preload_refuses_what_is_no_package(what: Any) -> None:
    with pytest.raises(TypeError, match=r"names of packages; xmp.shutdown\(\) ends the templates"):
        xmp.preload(what)


# --- nprocs=1 ----------------------------------------------------------------------------------


def alone(rank: int, *args: Any, **kwargs: Any) -> Any:
    os.environ["EBT_LEFT"] = "by fn"
    return os.getpid(), rank, xmp.rank(), xmp.world_size(), os.environ["RANK"], args, kwargs


def test_one_replica_runs_in_the_caller() -> None:
    before = {k: v for k, v in os.environ.items() if k != "EBT_LEFT"}
    with nothing_started():
        got = xmp.spawn(alone, (1,), nprocs=1, runtime="cpu", kwargs={"a": 2})
    assert isinstance(got, xmp.Results)
    assert list(got) == [(os.getpid(), 0, 0, 1, "0", (1,), {"a": 2})]
    assert dict(got.by_rank) == {0: got[0]}
    os.environ.pop("EBT_LEFT", None)
    assert dict(os.environ) == before


def test_one_replica_raises_the_users_own_exception() -> None:
    class Own(Exception):
        pass

    def raises(rank: int) -> None:
        raise Own("as it is")

    before = dict(os.environ)
    with pytest.raises(Own, match="as it is") as caught:
        xmp.spawn(raises, nprocs=1, runtime="cpu")
    assert type(caught.value) is Own
    assert dict(os.environ) == before


def test_one_replica_returns_the_object_itself() -> None:
    thing = object()
    assert xmp.spawn(lambda rank: thing, nprocs=1, runtime="cpu")[0] is thing


@pytest.mark.parametrize(
    "option",
    [
        {"env": {"EBT_X": "1"}},
        {"devices": [1]},
        {"start_method": "fork"},
        {"timeout": 60},
        {"show": "all"},
    ],
    ids=str,
)
def test_what_needs_a_process_gets_one(option: dict[str, Any]) -> None:
    runtime = "fake" if "devices" in option else "cpu"
    got = xmp.spawn(lambda rank: os.getpid(), nprocs=1, runtime=runtime, **option)
    assert got[0] != os.getpid()


def test_one_replica_without_join_is_a_process(method: str) -> None:
    context = xmp.spawn(
        lambda rank: os.getpid(), nprocs=1, runtime="cpu", join=False, start_method=method
    )
    assert isinstance(context, xmp.ProcessContext)
    assert context.results()[0] != os.getpid()


def test_start_processes_always_makes_a_process(method: str) -> None:
    context = xmp.start_processes(lambda rank: os.getpid(), join=False, start_method=method)
    assert context is not None
    assert context.results()[0] != os.getpid()


def test_standard_input_belongs_to_a_function_in_the_caller(script: Script) -> None:
    done = script(
        "import sys, xmp\n"
        "print(xmp.spawn(lambda rank: sys.stdin.read(), nprocs=1, runtime='cpu')[0])\n",
        stdin="typed",
    )
    assert done.out == "typed\n"


def test_importing_xmp_starts_nothing_and_reads_little() -> None:
    code = "import sys, xmp, threading; print(threading.active_count(), 'numpy' in sys.modules)"
    assert in_fresh_interpreter(code).stdout == "1 False\n"
