"""The table of traps in traps.md names tests that exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (TESTS / "project" / "traps.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d", line)
]


@functools.cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_trap_has_one_row() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 38))
    assert all(len(row) == 3 and row[1] for row in ROWS)


def test_every_trap_has_tests_and_all_of_them_exist() -> None:
    for number, _, cell in ROWS:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", cell)
        assert named, f"no test of trap {number}"
        assert cell.count("::") == len(named), cell
        for file, name in named:
            assert name in functions(file), f"trap {number}: {file}::{name} is not there"
