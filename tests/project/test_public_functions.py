"""What all public functions have in common: signatures, tracebacks, errors about keywords."""

from __future__ import annotations

import ast
import inspect
import traceback
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.stage import PACKAGE
from xmp._calls.options import ENGINE


def fn(rank: int) -> int:
    return rank


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        (lambda **given: xmp.spawn(fn, **given), "nproc", "nprocs"),
        (lambda **given: xmp.spawn(fn, **given), "hang_time_out", "hang_timeout"),
        (lambda **given: xmp.launch(fn, **given), "timeot", "timeout"),
        (lambda **given: xmp.start_processes(fn, **given), "startmethod", "start_method"),
        (lambda **given: xmp.plan(**given), "device", "devices"),
        (lambda **given: xmp.default_nprocs(**given), "run_time", "runtime"),
    ],
)
def test_an_unknown_keyword_is_pythons_own_error_with_the_nearest_name(
    call: Any, given: str, meant: str
) -> None:
    with pytest.raises(TypeError) as caught:
        call(**{given: 2})
    assert type(caught.value) is TypeError
    text = f"() got an unexpected keyword argument '{given}'. Did you mean '{meant}'?"
    assert str(caught.value).endswith(text)


def test_a_keyword_that_resembles_none_gets_no_suggestion() -> None:
    with pytest.raises(TypeError) as caught:
        xmp.spawn(fn, zzz=2)  # type: ignore[call-overload]
    assert str(caught.value) == "spawn() got an unexpected keyword argument 'zzz'"


@pytest.mark.parametrize("given", ["hosts", "engine"])
def test_what_only_launch_takes(given: str) -> None:
    for function in (xmp.spawn, xmp.start_processes):
        with pytest.raises(TypeError, match=f"keyword argument '{given}'. xmp.launch.. has it$"):
            function(fn, **{given: 2})  # type: ignore[operator]
    with pytest.raises(TypeError, match=f"launcher.. takes no {given}: .*xmp.launch.. has it$"):
        xmp.launcher(**{given: 2})  # type: ignore[call-overload]


def test_other_errors_about_the_call_are_as_they_are() -> None:
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'fn'$"):
        xmp.spawn()  # type: ignore[call-overload]


def test_a_type_error_of_the_function_is_as_it_is() -> None:
    def takes_one(rank: int) -> None: ...

    with pytest.raises(TypeError, match=r"unexpected keyword argument 'rang'$"):
        xmp.spawn(lambda rank: takes_one(rang=rank), nprocs=1, runtime="cpu")  # type: ignore[call-arg]


def test_the_signatures_are_visible() -> None:
    spawn = inspect.signature(xmp.spawn).parameters
    assert list(spawn)[:6] == ["fn", "args", "nprocs", "join", "daemon", "start_method"]
    assert spawn["hang_timeout"].default is None
    kinds = {each.kind for each in spawn.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    assert "nprocs" in inspect.signature(xmp.start_processes).parameters
    launch = dict(inspect.signature(xmp.launch).parameters)
    over_hosts = [row.name for row in ENGINE]
    defaults = [row.default for row in ENGINE]
    assert [launch.pop(name).default for name in over_hosts] == defaults
    assert launch == spawn


def frames(error: BaseException) -> list[tuple[str, str]]:
    """Module and function of each frame."""
    walk = traceback.walk_tb(error.__traceback__)
    return [(frame.f_globals["__name__"], frame.f_code.co_name) for frame, _ in walk]


def test_an_error_of_xmp_shows_one_of_its_frames() -> None:
    with pytest.raises(xmp.PlanError) as caught:
        xmp.spawn(fn, nprocs=0)
    assert frames(caught.value)[1:] == [("xmp._calls.spawn", "spawn")]
    with pytest.raises(xmp.PlanError) as caught:
        xmp.launch(fn, nprocs=0)
    assert frames(caught.value)[1:] == [("xmp._calls.spawn", "launch")]
    with pytest.raises(xmp.PlanError) as caught:
        xmp.plan(runtime="no such")
    assert frames(caught.value)[1:] == [("xmp._calls.spawn", "plan")]


def test_where_the_function_runs_in_the_caller_its_frames_stay() -> None:
    def launches(rank: int) -> None:
        xmp.spawn(fn, nprocs=0)

    with pytest.raises(xmp.PlanError) as caught:
        xmp.spawn(launches, nprocs=1, runtime="cpu")
    assert "launches" in [name for _, name in frames(caught.value)]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'xmp' has no attribute 'spwan'"):
        _ = xmp.spwan  # type: ignore[attr-defined]


# --- the program's signal handlers ---------------------------------------------------------------

INSIDE = [
    *sorted({*(PACKAGE / "_inside").glob("*.py")} - {PACKAGE / "_inside/script_runs.py"}),
    PACKAGE / "plugins/data_parallel/call.py",
]
"""What users call in their replicas: it may take long, and their handlers run meanwhile."""


def test_what_launches_or_plans_defers_handlers_as_a_whole() -> None:
    functions = {name: getattr(xmp, name) for name in xmp.__all__}
    plain = {n: f for n, f in functions.items() if inspect.isfunction(f)}
    deferring = {n for n, f in plain.items() if f.__code__.co_filename.endswith("/_calls/spawn.py")}
    files = {str(path) for path in INSIDE}
    assert {n for n, f in plain.items() if f.__code__.co_filename in files} == {*plain} - deferring


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: path.stem)
def test_imports_in_functions_that_users_call_in_replicas_defer_handlers(path: Path) -> None:
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    blocks = [
        block
        for function in functions
        for block in ast.walk(function)
        if isinstance(block, ast.With)
        and ast.unparse(block.items[0].context_expr) == "signals.deferred()"
    ]
    deferred = {id(node) for block in blocks for node in ast.walk(block)}
    torn = [
        ast.unparse(node)
        for function in functions
        for node in ast.walk(function)
        if (
            isinstance(node, (ast.Import, ast.ImportFrom))
            or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"))
        )
        and id(node) not in deferred
    ]
    assert not torn, "use `with signals.deferred():`, or imported() of _os.imports"
