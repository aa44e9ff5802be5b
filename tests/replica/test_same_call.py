"""Two calls of ``once_per_host`` without an order are one call if their functions are equal."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmp._inside.same_call import name_of
from xmp._os import signals


class Data:
    def __init__(self, path: str, **more: Any) -> None:
        self.path = path
        vars(self).update(more)

    def table(self) -> str:
        return self.path

    def lazily(self) -> Callable[[], str]:
        return lambda: self.path


def load(path: str) -> str:
    return path


def held(value: Any) -> Callable[[], Any]:
    return lambda: value


def two() -> tuple[Callable[[], Any], Callable[[], Any]]:
    return (lambda: 1), (lambda: 2)


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]] = {
    "one function": (load, load, True),
    "two lambdas of one line": (*two(), False),
    "the same text held": (held("a"), held("a"), True),
    "another text held": (held("a"), held("b"), False),
    "one and True": (held(1), held(True), False),
    "a path": (held(Path("a")), held(Path("b")), False),
    "partials": (functools.partial(load, "a"), functools.partial(load, "b"), False),
    "equal partials": (functools.partial(load, "a"), functools.partial(load, "a"), True),
    "methods": (Data("a").table, Data("b").table, False),
    "equal methods": (Data("a").table, Data("a").table, True),
    "attributes in another order": (Data("a", x=1, y=2).table, Data("a", y=2, x=1).table, True),
    "what self holds": (Data("a").lazily(), Data("b").lazily(), False),
    "deep": (Data("a", of=Data("b")).table, Data("a", of=Data("c")).table, False),
    "lists": (held([1, [2, "x"]]), held([1, [2, "y"]]), False),
    "dicts": (held({"a": 1}), held({"a": 2}), False),
    "sets": (held({"a", "b", "c"}), held({"c", "b", "a"}), True),
    "long lists": (held([0] * 5000), held([0] * 5001), False),
    "shapes": (held(np.zeros(3)), held(np.zeros(4)), False),
    "objects without attributes": (held(object()), held(object()), True),
    "classes": (held(Data), held(Path), False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_functions_are_told_apart(name: str) -> None:
    one, other, equal = PAIRS[name]
    assert (name_of(one) == name_of(other)) is equal


def test_a_value_that_holds_itself_has_a_name() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert name_of(held(loop)) == name_of(held(loop))


class Called:
    def __init__(self) -> None:
        self.seen: list[bool] = []

    def look(self, *_: Any) -> None:
        self.seen.append(signals.in_handler())

    def __call__(self, *_: Any) -> None:
        self.look()


@pytest.mark.parametrize("kind", ["method", "object", "partial", "lambda"])
def test_a_handler_is_known_by_its_frames(kind: str) -> None:
    called = Called()
    handlers: dict[str, Any] = {
        "method": called.look,
        "object": called,
        "partial": functools.partial(called.look, 1),
        "lambda": lambda *_: called.look(),
    }
    before = signal.signal(signal.SIGUSR1, handlers[kind])
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert called.seen == [True]
        assert not signals.in_handler()
    finally:
        signal.signal(signal.SIGUSR1, before)
