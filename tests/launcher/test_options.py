"""The table of options, and all that is written out beside it: signatures, flags, the guide."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import inspect
import traceback
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import nothing_started
from tests.support.stage import ROOT
from xmp._calls import options
from xmp._calls.options import ENGINE, OPTIONS, SPAWN, Asked, Option
from xmp._commands import _run_options
from xmp._words.errors import PlanError
from xmp._words.types import Limits, Observer, Output, Request, Settings

pytestmark = pytest.mark.first_pass

CALLED = ("fn", "args", "kwargs", "join")
"""Parameters that say what is called, and are no options."""
GROUPS = {
    "request": Request,
    "settings": Settings,
    "limits": Limits,
    "output": Output,
    "observer": Observer,
}
GUIDE = ROOT / "docs" / "guide" / "options.md"


def nothing(rank: int) -> None:
    pass


def defaults_of(function: Any) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.name not in CALLED}


@pytest.mark.parametrize(("function", "rows"), [(xmp.spawn, SPAWN), (xmp.launch, OPTIONS)])
def test_signatures_have_the_options_of_the_table(function: Any, rows: tuple[Option, ...]) -> None:
    assert defaults_of(function) == {each.name: each.default for each in rows}


def keywords_of(file: str, typed: str) -> set[str]:
    tree = ast.parse(Path(inspect.getfile(options)).with_name(file).read_text())
    (found,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == typed)
    return {each.target.id for each in found.body if isinstance(each, ast.AnnAssign)}  # type: ignore[attr-defined]


def test_keywords_for_type_checkers_are_those_of_the_table() -> None:
    """``nprocs``, ``daemon`` and ``start_method`` may be given by position, and stand apart."""
    apart = {"nprocs", "daemon", "start_method"}
    assert keywords_of("spawn.py", "LaunchOptions") == {each.name for each in SPAWN} - apart


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_each_option_goes_into_a_field(row: Option) -> None:
    group, _, field = row.into.partition(".")
    if group == "prepared":  # an engine's own: its names are those of the rows
        assert field == row.name
        return
    fields = dataclasses.fields(GROUPS[group]) if field else dataclasses.fields(Asked)
    assert (field or group) in {each.name for each in fields}
    assert sum(each.into == row.into for each in OPTIONS) == 1


def parser_of_run() -> argparse.ArgumentParser:
    commands = argparse.ArgumentParser().add_subparsers()
    _run_options.add(commands)
    parser: argparse.ArgumentParser = commands.choices["run"]
    return parser


@pytest.mark.parametrize("row", [each for each in OPTIONS if each.flag], ids=lambda row: row.name)
def test_each_flag_is_one_of_xmp_run(row: Option) -> None:
    action = parser_of_run()._option_string_actions[f"--{row.name.replace('_', '-')}"]
    assert (action.dest, action.help) == (row.name, row.says)
    assert parser_of_run()._option_string_actions[f"--{row.name}"].dest == row.name


def as_line(row: Option) -> str:
    flag = f"`--{row.name.replace('_', '-')}`" if row.flag else ""
    launch = " (`launch`)" if row in ENGINE else ""
    over_hosts = "" if row in ENGINE else row.over_hosts
    as_rank = "" if row in ENGINE else row.as_rank
    return f"| `{row.name}`{launch} | {flag} | {as_rank} | {over_hosts} |"


def test_the_guide_has_a_line_for_each_option() -> None:
    lines = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    assert lines == [as_line(row) for row in OPTIONS]


@pytest.mark.parametrize(
    ("given", "asks"),
    [
        ({}, []),
        ({"prefix": False, "progress": False, "grace": 5, "max_restarts": 0}, []),
        ({"prefix": "", "seed": 0, "show": 0}, ["seed", "prefix", "show"]),
        ({"grace": 4.0, "daemon": True}, ["daemon", "grace"]),
    ],
)
def test_an_option_that_says_nothing_is_not_given(given: dict[str, Any], asks: list[str]) -> None:
    assert [each.name for each in options.asked(nothing, (), **given).given] == asks


def test_what_was_asked_for_is_typed() -> None:
    found = options.asked(
        nothing, (), nprocs=-1, devices="4,5", timeout=1.5, log_dir="logs", show="0,2-3",
        env={"B": "2", "A": "1"}, seed=7, max_restarts=2,
    )  # fmt: skip
    assert found.requested(threads=3) == Request(
        nprocs=2, devices=(4, 5), env=((("A", "1"), ("B", "2")),), threads=3
    )
    output = Output(log_dir=str(Path("logs").resolve()), show=(0, 2, 3))
    method = found.settings.start_method
    assert found.settings == Settings(
        method, seed=7, limits=Limits(total=1_500_000_000), max_restarts=2, output=output
    )
    assert found.call().settings is found.settings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": None, "log_dir": "logs"}, "gather_logs=True without engine="),
        ({"engine": "local"}, "gather_logs=True without log_dir="),
    ],
)
def test_gathering_needs_files_of_other_hosts(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        options.asked(nothing, (), gather_logs=True, **given)


class Text(str, enum.Enum):
    """As configurations have it: a string, of a class that only the program knows."""

    VALUE = "gloo"


def test_strings_of_the_programs_own_classes_travel_as_strings() -> None:
    found = options.asked(
        nothing, (), backend=Text.VALUE, prefix=Text.VALUE, env={Text.VALUE: Text.VALUE},
        start_method=enum.Enum("Method", {"a": "spawn"}, type=str).a,  # type: ignore[attr-defined]
    )  # fmt: skip
    request = found.requested()
    assert found.settings.output is not None
    given = [request.backend, found.settings.output.prefix, found.settings.start_method]
    assert request.env is not None
    assert {type(each) for each in (*given, *request.env[0][0])} == {str}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"join": "no"}, "join must be True or False, not str"),
        ({"daemon": lambda: 0}, "daemon must be True or False, not function"),
        ({"threads": "2"}, "threads must be a whole number, not str"),
        ({"bind": [1, 0]}, 'bind must be True, False, "cores", "numa" or None, not list'),
        ({"devices": 3}, "devices must be positions such as"),
    ],
)
def test_a_value_of_another_type_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        options.asked(nothing, (), **given)


def test_a_number_that_python_does_not_write_is_refused() -> None:
    with pytest.raises(PlanError, match="max_restarts is a number of 16610 bits"):
        options.asked(nothing, (), max_restarts=10**5000)


@pytest.mark.parametrize("name", ["grace", "timeout", "runtime", "start_method", "backend", "show"])
def test_what_is_long_is_shown_short(name: str) -> None:
    value = 10**5000 if name in ("grace", "timeout") else "q" * 10_000
    with nothing_started(), pytest.raises(xmp.PlanError, match=f"^{name}=") as caught:
        xmp.spawn(print, **{"nprocs": 2, "runtime": "cpu", name: value})
    assert len(str(caught.value)) < 300


def test_the_traceback_of_a_limit_of_a_wrong_type_ends_in_the_users_line() -> None:
    with pytest.raises(TypeError, match="grace") as caught:
        xmp.spawn(print, nprocs=2, runtime="cpu", grace="a")  # type: ignore[arg-type]
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:] == [
        "spawn"
    ]
