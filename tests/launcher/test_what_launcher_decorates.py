"""Which callables and options ``xmp.launcher`` takes; what it refuses, and where."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import xmp
from tests.support.launching import nothing_started

two: Any = xmp.launcher(nprocs=2, runtime="cpu")


def plain(x: Any) -> Any:
    return xmp.rank(), x


@two
def train(x: int, *, scale: int = 1) -> int:
    return x * scale


class Model:
    def __init__(self, size: int) -> None:
        self.size = size

    @two
    def fit(self, x: int) -> tuple[int, int]:
        return xmp.rank(), self.size * x

    @staticmethod
    @two
    def apart(x: int) -> tuple[int, int]:
        return xmp.rank(), x

    @classmethod
    @two
    def made(cls, x: int) -> tuple[int, str]:
        return xmp.rank(), cls.__name__ * x

    def bound(self, x: int) -> tuple[int, int]:
        return xmp.rank(), self.size + x

    def __call__(self, x: int) -> tuple[int, int]:
        return xmp.rank(), self.size - x


@pytest.mark.parametrize(
    ("call", "second"),
    [
        (lambda: Model(3).fit(2), 6),
        (lambda: Model.fit(Model(3), x=2), 6),
        (lambda: Model.apart(2), 2),
        (lambda: Model(1).apart(2), 2),
        (lambda: Model.made(2), "ModelModel"),
        (lambda: two(Model(3).bound)(2), 5),
        (lambda: two(Model(3))(2), 1),
        (lambda: two(functools.partial(plain, x=9))(), 9),
        (lambda: two(lambda *args: (xmp.rank(), args))(1, 2), (1, 2)),
    ],
)
def test_methods_and_other_callables(call: Callable[[], Any], second: Any) -> None:
    assert call() == [(0, second), (1, second)]


async def asynchronous(x: int) -> int:
    return x


def generator(x: int) -> Iterator[int]:
    yield x


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (asynchronous, r"async function: .*def main\(\*args\): return asyncio.run\(asynchronous"),
        (generator, "generator is|generator, a generator function: a call of it runs nothing"),
        (Model, "Model is a class. Decorate its method"),
        (staticmethod(plain), "write @staticmethod above @xmp.launcher"),
        (classmethod(plain), "write @classmethod above @xmp.launcher"),
        ("train", "launcher decorates functions, not str: 'train'"),
    ],
)
def test_what_cannot_be_launched_is_refused_where_it_is_decorated(fn: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        xmp.launcher(fn)
    with pytest.raises(TypeError, match=text):
        two(fn)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"nproc": 2}, TypeError, "unexpected keyword argument 'nproc'. Did you mean 'nprocs'"),
        ({"rankstart": 2}, TypeError, "Did you mean 'rank_start'"),
        ({"join": False}, TypeError, r"takes no join: .* xmp\.spawn\(\) has it"),
        ({"args": ()}, TypeError, "takes no args"),
        ({"rank_start": 2}, xmp.PlanError, "rank_start=2 without world_size"),
        ({"master_ip": "10.0.0.1"}, xmp.PlanError, "master_ip='10.0.0.1' without world_size"),
        ({"port": 1}, xmp.PlanError, "port=1 without world_size"),
        ({"world_size": 0}, xmp.PlanError, "world_size from 1 up"),
        ({"world_size": 4, "rank_start": -2}, xmp.PlanError, "rank_start from 0 up"),
        ({"world_size": 4, "port": 70000}, xmp.PlanError, "port=70000: give a number from 1"),
        ({"world_size": "4"}, TypeError, "world_size must be a whole number"),
        ({"world_size": 4, "master_ip": 10}, TypeError, "master_ip must be a string"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        xmp.launcher(plain, **options)
    with pytest.raises(error, match=text):
        xmp.launcher(**options)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: train(), r"train\(x, \*, scale\): missing a required argument: 'x'"),
        (lambda: train(1, rate=2), "got an unexpected keyword argument 'rate'"),
        (lambda: Model(1).fit(), r"fit\(self, x\): missing a required argument: 'x'"),
        (lambda: xmp.launcher(plain, nprocs=2, world_size=8)(1), "master_ip is not given"),
        (lambda: xmp.launcher(plain, nprocs=2, world_size=3)(1), "do not fit 2 replicas"),
        (lambda: xmp.launcher(plain, nprocs=0)(1), "nprocs=0"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_before_any_process(
    call: Callable[[], Any], text: str
) -> None:
    with nothing_started(), pytest.raises((TypeError, ValueError), match=text):
        call()


def test_a_lock_that_the_function_captures_is_named() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"fn\.function's variable lock \(lock\) cannot be sent"):
        two(lambda: lock)()
