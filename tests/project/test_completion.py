"""What editors and ``help()`` offer: xmp's names, the words an option takes, every argument."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest

import xmp
import xmp.compat.accelerate
import xmp.compat.megengine
import xmp.compat.paddle
import xmp.compat.torch_mp
import xmp.compat.torch_xla
import xmp.testing
from xmp import _inside
from xmp._calls import checks
from xmp._plan import runtimes
from xmp._processes.messages.order import Failure
from xmp._words import types

FACES = (
    xmp,
    xmp.testing,
    xmp.compat.accelerate,
    xmp.compat.megengine,
    xmp.compat.paddle,
    xmp.compat.torch_mp,
    xmp.compat.torch_xla,
)
REST = {
    ("xmp", "launcher"): "options: those of spawn",
    ("xmp", "preload"): "packages: any number",
    ("xmp", "once_per_host"): "of the user's function",
    ("xmp.compat.megengine", "launcher"): "it tells what each of MegEngine's would be",
    ("xmp.compat.paddle", "spawn"): "options: Paddle's own signature has them",
}
"""What may show ``*args`` or ``**options``."""


def words_of(choice: Any) -> set[str]:
    parts = [choice, *typing.get_args(choice)]
    literals = [each for each in parts if typing.get_origin(each) is typing.Literal]
    return {word for each in literals for word in typing.get_args(each)}


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        (types.StartMethod, set(checks.METHODS)),
        (types.Op, set(_inside.OPS)),
        (types.RuntimeName, {r.name for r in runtimes.runtimes() if not r.for_tests}),
    ],
    ids=["start_method", "op", "runtime"],
)
def test_the_words_are_those_that_are_taken(choice: Any, taken: set[str]) -> None:
    assert words_of(choice) == taken


@pytest.mark.parametrize("bind", [True, False, *sorted(words_of(types.Bind))])
def test_each_word_of_bind_is_taken(bind: bool | str) -> None:
    assert xmp.plan(2, runtime="cpu", bind=bind).world_size == 2  # type: ignore[arg-type]


def test_xmp_offers_its_own_names_alone() -> None:
    public = {name for name in dir(xmp) if not name.startswith("_")}
    others = public - {*xmp.__all__}
    assert others <= {"compat", "testing", "plugins"}
    # An editor reads the file and knows no __dir__.
    assert {"Any", "TYPE_CHECKING"}.isdisjoint(vars(xmp))


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__.removeprefix("xmp.compat."))
def test_every_argument_has_a_name(face: Any) -> None:
    for name in face.__all__:
        made = getattr(face, name)
        if not callable(made) or (isinstance(made, type) and issubclass(made, BaseException)):
            continue
        kinds = {each.kind for each in inspect.signature(made).parameters.values()}
        rest = kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        assert not rest or (face.__name__, name) in REST, inspect.signature(made)


def test_paddles_data_parallel_shows_its_own_arguments() -> None:
    shown = [*inspect.signature(xmp.compat.paddle.DataParallel).parameters]
    assert shown[:3] == ["layers", "strategy", "comm_buffer_size"]
    assert shown[3:] == ["last_comm_buffer_size", "find_unused_parameters", "group"]


def test_what_a_failure_shows_is_what_it_has() -> None:
    shown = {name for name in vars(xmp._words.errors.ReplicaFailure) if not name.startswith("_")}
    assert {"rank", "what", "label", "exception", "stderr"} <= shown
    failure = Failure(0, 0, 1, "raised")
    for name in shown:
        getattr(failure, name)
