"""The codes of errors: each has a page and is raised; they survive what errors go through."""

from __future__ import annotations

import ast
import copy
import dataclasses
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.stage import PACKAGE
from xmp._explain import CODES
from xmp._processes.messages.order import MALFORMED, Failure
from xmp._processes.report import host_error
from xmp._processes.report.failure_codes import CALLED_ON_IT, code_of
from xmp._rules.watch import STOPPED
from xmp._words import errors
from xmp._words.errors import XmpError, code_in

PAGES = PACKAGE / "_explain"
TEXTS = Path(__file__).parent / "texts"
SECTIONS = ("Cause", "What to look at", "What to do")
CODE = re.compile(r"XMP-[A-Z]\d\d")
CLASSES = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
ROWS = {kind.code: kind for kind in CODES}


# --- the table, its pages, and where the codes are raised ----------------------------------------


def test_each_code_is_there_once_and_has_a_title() -> None:
    assert len(ROWS) == len(CODES)
    assert all(CODE.fullmatch(kind.code) and kind.title for kind in CODES)
    assert {path.stem for path in PAGES.glob("*.md")} == {*ROWS}


@pytest.mark.parametrize("code", ROWS)
def test_a_page_says_cause_what_to_look_at_and_what_to_do(code: str) -> None:
    title, *rest = (PAGES / f"{code}.md").read_text("utf-8").splitlines()
    assert title == f"# {code}: {ROWS[code].title}"
    parts = re.split(r"^## (.*)$", "\n".join(rest), flags=re.MULTILINE)
    assert tuple(parts[1::2]) == SECTIONS
    assert all(part.strip() for part in parts[2::2])
    assert "](" not in "".join(rest), "a terminal and the site have other targets for links"


def test_docs_list_each_code_with_its_title_and_classes() -> None:
    page = (PACKAGE.parent / "docs/errors.md").read_text()
    found = re.findall(r"^\| \[(XMP-\w+)\]\(\S+\) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    said = [(code, title, classes.replace("`", "")) for code, title, classes in found]
    assert said == [tuple(kind) for kind in CODES]


def spelled() -> Iterator[str]:
    """Every code that the package has as a string."""
    for path in PACKAGE.rglob("*.py"):
        if path.parent != PAGES:
            strings = ast.walk(ast.parse(path.read_text()))
            values = (node.value for node in strings if isinstance(node, ast.Constant))
            yield from (each for each in values if isinstance(each, str) and CODE.fullmatch(each))


def test_each_code_is_raised_somewhere_and_no_other() -> None:
    assert {*spelled()} == {*ROWS}


def made() -> Iterator[tuple[str, str, str]]:
    """Place, class and code of each error that a line of the package makes with a code."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in CLASSES:
                own = getattr(errors, ast.unparse(node.func)).code
                codes = [each.value for each in node.keywords if each.arg == "code"]
                given = codes[0] if codes else ast.Constant(own)
                if isinstance(given, ast.Constant):
                    yield f"{path}:{node.lineno}", ast.unparse(node.func), str(given.value)


def test_the_table_knows_of_which_class_an_error_is() -> None:
    wrong = [each for each in made() if each[1] not in ROWS[each[2]].classes.split(", ")]
    assert wrong == []
    assert {getattr(errors, name).code for name in CLASSES} <= {*ROWS}


# --- what an error shows -------------------------------------------------------------------------

FAILED = {
    "XMP-R01": {"kind": "raised"},
    "XMP-R02": {"kind": "exit", "exit_code": 3},
    "XMP-R03": {"kind": "signal", "signal_name": "SIGSEGV"},
    "XMP-R04": {"kind": "signal", "signal_name": "SIGKILL", "why": "out of memory"},
    "XMP-R05": {"kind": "signal", "signal_name": "SIGKILL", "why": "reason unknown"},
    "XMP-R06": {"kind": "interrupted"},
    "XMP-R07": {"kind": "raised", "final": True},
    "XMP-R08": {"kind": MALFORMED, "signal_name": "SIGKILL", "why": "it is empty"},
    "XMP-R09": {"kind": "raised", "entered": False},
}
ALSO = [
    ("XMP-R04", {"kind": "exit", "exit_code": 137, "why": "out of memory"}),
    ("XMP-R05", {"kind": "signal", "signal_name": "SIGTERM"}),
    ("XMP-R06", {"kind": "signal", "signal_name": "SIGTERM", "label": STOPPED}),
    ("XMP-R06", {"kind": "signal", "signal_name": "SIGKILL", "why": f"kill() {CALLED_ON_IT}"}),
    ("XMP-R08", {"kind": "exit", "exit_code": 1, "hung_up": True}),
    ("XMP-R09", {"kind": "exit", "exit_code": 1, "entered": False}),
]


@pytest.mark.parametrize(("code", "how"), [*FAILED.items(), *ALSO])
def test_the_end_of_a_replica_determines_the_code(code: str, how: dict[str, Any]) -> None:
    assert code_of(Failure(rank=1, local_rank=1, pid=7, **how)) == code


def test_every_code_of_replicas_has_a_case() -> None:
    assert {*FAILED} == {code for code in ROWS if code.startswith("XMP-R")}


@pytest.mark.parametrize("path", sorted(TEXTS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_report_has_its_code_once_on_the_line_of_the_error(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if CODE.search(line)]
    assert len(lines) == 1, lines
    name, _, text = lines[0].partition(": ")
    assert re.fullmatch(r"xmp\.\w+", name)
    assert code_in(text) in ROWS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no room", "no room [XMP-S04]"),
        ("no room\nhere", "no room [XMP-S04]\nhere"),
        ("it said:\nno room", "it said: [XMP-S04]\nno room"),
        ("no room: 'x [XMP-S04] y' is taken", "no room: 'x [XMP-S04] y' is taken [XMP-S04]"),
        ("", ""),
    ],
)
def test_the_code_is_at_the_end_of_the_first_line(text: str, shown: str) -> None:
    error = xmp.StartError(text, code="XMP-S04")
    assert (str(error), error._plain) == (shown, text)
    assert xmp.StartError(str(error)).code == ("XMP-S04" if text else "XMP-S01")
    error._add("more")
    assert str(error) == (f"{shown}\n\nmore" if text else "\n\nmore")


@pytest.mark.parametrize(
    "text",
    [
        *("no [XMP-S04] room", "no [XMP-S04]:", "no[XMP-S04]", "no room\nhere [XMP-S04]"),
        *("no [XMP-S4]", "no [XMP-S004]", "no [XMP-s04]", "no [XMP-S0\N{ARABIC-INDIC DIGIT FOUR}]"),
        *("no [XMP-S04]]", "[XMP-S04]", "XMP-S04]", ""),
    ],
)
def test_what_looks_like_a_code_is_none(text: str) -> None:
    assert code_in(text) == ""
    assert code_in(f"no room [XMP-S04]\n{text}") == "XMP-S04"


class Numbered(XmpError):
    code = 404  # type: ignore[assignment]


class Asked(XmpError):
    @property  # type: ignore[misc]
    def code(self) -> str:  # type: ignore[override]
        return self.no_such_name  # type: ignore[attr-defined, no-any-return]


class Own(XmpError):
    @property  # type: ignore[misc]
    def code(self) -> str:  # type: ignore[override]
        return "XMP-H01"


@pytest.mark.parametrize(
    ("kind", "shown"),
    [(Numbered, "no"), (Asked, "no"), (Own, "no [XMP-H01]")],
)
def test_a_subclass_may_have_a_code_of_its_own(kind: type[XmpError], shown: str) -> None:
    for error in (kind("no"), kind("no", code="XMP-P03")):
        assert (str(error), error._plain, str(copy.copy(error))) == (shown, "no", shown)


def test_the_classes_have_codes_for_errors_that_programs_make() -> None:
    assert xmp.ReplicaError("dead", 1, 7).code == "XMP-R01"
    assert xmp.ReplicaDied("dead", 1, 7, 3).code == "XMP-R02"
    assert (xmp.PlanError().code, str(xmp.PlanError())) == ("XMP-P00", "")


# --- what errors go through ----------------------------------------------------------------------

WAYS: dict[str, Callable[[XmpError], XmpError]] = {
    "copied": copy.deepcopy,
    "pickled": lambda error: pickle.loads(pickle.dumps(error)),
    "told": lambda error: type(error)(str(error)),
    "quoted": lambda error: type(error)(f"on host 1 (b): {error}"),
    "told by another host": lambda error: host_error.build(
        dataclasses.replace(host_error.described(error, False), host=1, name="b")
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "error",
    [
        xmp.PlanError("it does not fit", code="XMP-P03"),
        xmp.ReplicaDied("rank 1 died", 1, 7, code="XMP-R04"),
        xmp.ReplicaRaised("rank 1 raised xmp.PlanError: no [XMP-P03]", code="XMP-R01"),
        xmp.ReplicaTimeout("too late", code="XMP-T03"),
        xmp.HostLost("host 2 is lost"),
    ],
    ids=lambda error: error.code,
)
def test_the_code_survives(way: str, error: XmpError) -> None:
    other = WAYS[way](error)
    assert other.code == error.code
    assert str(other).count(f"[{error.code}]") == 1


def test_a_cause_keeps_its_own_text() -> None:
    with pytest.raises(xmp.ReplicaRaised) as caught:
        raise xmp.ReplicaRaised("rank 1 raised KeyError: 'a'", code="XMP-R01") from KeyError("a")
    assert str(caught.value.__cause__) == "'a'"
