"""The floors: which module may import which, which are pure, how long files and functions get.

Read from the sources alone (``ast``), so it also sees imports inside functions.
"""

from __future__ import annotations

import ast
import functools
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.stage import PACKAGE

SOURCES = sorted(PACKAGE.rglob("*.py"))
PLUGINS = ("accelerate", "lightning", "megengine", "paddle")
"""Those that are faces of other launchers, with public names in ``xmp.compat``."""

FLOORS = (
    {"_words", "_registry", "_explain"},
    {"_rules", "_plan"},  # pure
    {"_os"},
    {"_payload"},
    {"_inside"},
    {"_processes"},
    {"_calls"},
    {"__init__", "__main__", "_commands", "compat", "testing"},
    {"_hosts"},
    {"plugins"},
)
"""The rooms from the ground up. The first ring, one host, ends below ``_hosts``, the second."""
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
PURE = {"_words"} | FLOORS[1]
PURE_LIBRARY = {
    *("__future__", "collections", "collections.abc", "dataclasses", "enum", "functools", "html"),
    *("difflib", "math", "numbers", "re", "reprlib", "typing"),
}
# On one floor a module may know these neighbours; the pure ones all know each other.
NEIGHBOURS = {"__main__": {"__init__", "_commands"}}
PUBLIC_NAMES = {"__init__.py", *(f"compat/{n}.py" for n in PLUGINS)}
"""Files that hand on names of higher rooms, and hold no logic."""
LOOKING = {"open", "print", "input", "__import__"}
DEVICE_WORDS = re.compile(r"(?<![A-Za-z])(TPU|XRT|PJRT|JAX)|CUDA", re.IGNORECASE)

FILE_LINES = 400
FUNCTION_LINES = 40
MEDIAN_LINES = 10


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def group_of(path: Path) -> str:
    """The room at the top of xmp/ that the file is in; the name of a file without a room."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[str]:
    """Absolute dotted names of everything that ``path`` imports, wherever in it."""
    package = ["xmp", *path.relative_to(PACKAGE).parts[:-1]]
    return imported(ast.walk(tree_of(path)), package)


def imported(nodes: Iterable[ast.AST], package: list[str]) -> Iterator[str]:
    """The dotted names that these statements of a module in ``package`` import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            dotted = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import _ports`: the name itself is the module.
            yield from (f"{dotted}.{alias.name}" for alias in node.names)


def groups_imported(path: Path) -> set[str]:
    """The top-level parts of xmp that ``path`` imports from."""
    inside = {name.split(".")[1] for name in imports(path) if name.startswith("xmp.")}
    return {name if name in LEVEL else "__init__" for name in inside}


def upward() -> Iterator[str]:
    """One line for each import that no floor allows."""
    for path in SOURCES:
        group = group_of(path)
        if name_of(path) in PUBLIC_NAMES:
            continue
        for other in groups_imported(path) - {group}:
            lower = LEVEL[other] < LEVEL[group]
            pure = group in PURE and other in PURE
            if not (lower or pure or other in NEIGHBOURS.get(group, ())):
                yield f"{name_of(path)} (floor {LEVEL[group]}) imports {other} ({LEVEL[other]})"


def test_every_module_is_on_a_floor() -> None:
    assert {group_of(path) for path in SOURCES} - LEVEL.keys() == set()


def test_a_module_imports_only_from_lower_floors() -> None:
    assert [*upward()] == []


def looks() -> Iterator[str]:
    """One line for each way in which a pure module could look at the host."""
    for path in (path for path in SOURCES if group_of(path) in PURE):
        for name in imports(path):
            module = name.rpartition(".")[0] or name
            if not (name.startswith("xmp.") or {name, module} & PURE_LIBRARY):
                yield f"{name_of(path)} is pure and imports {name}"
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in LOOKING:
                yield f"{name_of(path)} is pure and calls {ast.unparse(node)}"


def test_a_pure_module_looks_at_nothing() -> None:
    assert [*looks()] == []


def test_inside_knows_no_framework() -> None:
    inside = [*(PACKAGE / "_inside").glob("*.py")]
    foreign = {
        name_of(path): found
        for path in inside
        if (found := {n.split(".")[0] for n in imports(path)} & {"torch", "jax", "torch_xla"})
    }
    assert inside
    assert foreign == {}
    frameworks = "xmp._inside.frameworks"
    assert [name for path in inside for name in imports(path) if name.startswith(frameworks)] == []


def test_the_engine_does_not_know_what_a_device_is() -> None:
    found = [
        f"{name_of(path)}:{number}: {line}"
        for path in SOURCES
        if group_of(path) == "_processes"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if DEVICE_WORDS.search(line)
    ]
    assert found == []


def unsaid() -> Iterator[str]:
    """The modules that do not say their idea, or not what they offer."""
    for path in SOURCES:
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            yield f"{name_of(path)} has no docstring"
        only_says = len(tree.body) == 1  # a package that offers its modules alone
        if not only_says and name_of(path) not in PUBLIC_NAMES and "__all__" not in assigned(tree):
            yield f"{name_of(path)} has no __all__"


def assigned(tree: ast.Module) -> set[str]:
    """The names that a module assigns to at its top."""
    targets = [
        target
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_a_module_says_its_idea_and_what_it_offers() -> None:
    assert [*unsaid()] == []


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines of the body without the docstring) of every function in ``path``.

    The signature is not counted: a verb with twenty options has twenty lines of them.
    """
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            size = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            yield node.name, size


def test_nothing_is_too_long() -> None:
    lines = {name_of(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: count for name, count in lines.items() if count > FILE_LINES} == {}
    long = {
        f"{name_of(path)}: {name}": size
        for path in SOURCES
        for name, size in functions(path)
        if size > FUNCTION_LINES
    }
    assert long == {}


def test_files_beside_the_package_are_small_too() -> None:
    root = PACKAGE.parent
    files = [path for folder in ("tests", "scripts") for path in (root / folder).rglob("*")]
    lines = {
        str(path.relative_to(root)): len(path.read_text().splitlines())
        for path in files
        if path.is_file() and path.suffix in ("", ".py")
    }
    assert {name: count for name, count in lines.items() if count > FILE_LINES} == {}


def test_the_median_function_is_short() -> None:
    sizes = [size for path in SOURCES for _, size in functions(path)]
    assert statistics.median(sizes) <= MEDIAN_LINES


def test_the_pure_library_is_the_standard_one() -> None:
    assert {name.split(".")[0] for name in PURE_LIBRARY} <= sys.stdlib_module_names


FACE = "xmp._processes"
ROOMS = {path.name for path in (PACKAGE / "_processes").iterdir() if path.is_dir()}


def test_the_engine_is_entered_by_its_face() -> None:
    """By what xmp/_processes/__init__.py offers, not by its rooms."""
    beyond = [
        f"{name_of(path)} imports {each}"
        for path in [*(PACKAGE / "_calls").glob("*.py"), *(PACKAGE / "_hosts").glob("*.py")]
        for each in imports(path)
        if each.startswith(FACE) and ({*each.split(".")[2:]} & ROOMS or each.count(".") > 2)
    ]
    assert beyond == []
