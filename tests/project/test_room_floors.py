"""The engine's rooms: which may import which, and that no files import each other in a circle.

Read from the sources alone (``ast``), so imports inside functions count too. Imports under
``TYPE_CHECKING`` never run: they count for circles of files alone.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.project.test_floors import imported
from tests.support.stage import PACKAGE

ENGINE = "xmp._processes."
ROOMS = {
    "launcher": 7,
    "template": 6,
    "supervisor": 5,
    "replica": 4,
    "terminal": 4,
    "output": 3,
    "report": 3,
    "messages": 2,
    "system": 1,
}
"""A room imports from itself and from lower floors only."""

Sources = Mapping[str, str]
"""Text by module name; a package has the name that ends with ``.__init__``."""


def read_sources() -> dict[str, str]:
    return {
        ".".join(("xmp", *path.relative_to(PACKAGE).with_suffix("").parts)): path.read_text()
        for path in PACKAGE.rglob("*.py")
    }


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that run for a type checker only."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            yield node
            yield from statements(node)


@functools.cache
def imports(module: str, text: str, types: bool = False) -> tuple[str, ...]:
    """Absolute dotted names of everything that a module imports, wherever in it."""
    tree = ast.parse(text)
    return tuple(imported(ast.walk(tree) if types else statements(tree), module.split(".")[:-1]))


def room_of(name: str) -> str:
    """The room of a dotted name, or an empty string."""
    room = name.removeprefix(ENGINE).partition(".")[0] if name.startswith(ENGINE) else ""
    return room if room in ROOMS else ""


def upward(sources: Sources) -> list[str]:
    """What rooms import although it does not stand on a lower floor."""
    return [
        f"{module} imports {name}: floor {ROOMS[room_of(name)]} from {ROOMS[room_of(module)]}"
        for module, text in sources.items()
        if room_of(module)
        for name in imports(module, text)
        if room_of(name) not in ("", room_of(module))
        and ROOMS[room_of(name)] >= ROOMS[room_of(module)]
    ]


def arrows(sources: Sources, types: bool = False) -> dict[str, set[str]]:
    """Which files each file imports."""
    found: dict[str, set[str]] = {}
    for module, text in sources.items():
        names = [*imports(module, text, types)]
        names += [name.rpartition(".")[0] for name in names]
        files = {n if n in sources else f"{n}.__init__" for n in names}
        found[module] = (files & set(sources)) - {module}
    return found


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The sets of files that reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = set(graph[waiting.pop()]) - seen
            seen |= new
            waiting += new
        return seen

    reach = {module: reached(module) for module in graph}
    found = {
        tuple(sorted({module, *(other for other in reach[module] if module in reach[other])}))
        for module in graph
        if module in reach[module]
    }
    return [list(circle) for circle in sorted(found)]


def test_every_folder_of_the_engine_has_a_floor() -> None:
    folders = {path.name for path in (PACKAGE / "_processes").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(ROOMS)


def test_a_room_imports_from_lower_floors_only() -> None:
    assert upward(read_sources()) == []


def test_one_line_that_imports_upwards_is_found() -> None:
    sources = read_sources()
    for room, other in [(a, b) for a in ROOMS for b in ROOMS if a != b and ROOMS[b] >= ROOMS[a]]:
        module = next(name for name in sorted(sources) if room_of(name) == room)
        target = next(name for name in sorted(sources) if room_of(name) == other)
        late = f"\n\ndef late() -> None:\n    from {target} import anything\n"
        found = upward({**sources, module: sources[module] + late})
        assert [line for line in found if line.startswith(f"{module} imports {target}.")]


@pytest.mark.parametrize("types", [False, True])
def test_no_files_import_each_other_in_a_circle(types: bool) -> None:
    sources = read_sources()
    packages = {module for module in sources if module.endswith(".__init__")}
    # A package's own face re-exports its files; what a file takes from it is found by the floors.
    graph = {
        module: {other for other in others if other not in packages}
        for module, others in arrows(sources, types).items()
    }
    assert circles(graph) == []


LAUNCHES = {"Launch", "SupervisedLaunch", "HostsLaunch", "RestartingLaunch"}
HANDLES = {"xmp._processes.__init__._handle", "xmp._processes.launcher.context.__init__"}
"""What users hold is made of a launch: ``ProcessContext``."""


def takes_a_launch(sources: Sources) -> list[str]:
    """Functions of other modules with a parameter that is annotated with a launch."""
    found = []
    for module, text in sources.items():
        tree = ast.parse(text)
        classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        own = classes & LAUNCHES
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                types = [ast.unparse(each.annotation) for each in arguments if each.annotation]
                names = {name for each in types if "Callable" not in each for name in each.split()}
                found += [f"{module}.{node.name}"] if names & LAUNCHES and not own else []
    return found


def test_no_function_takes_a_whole_launch() -> None:
    """It would read and write the state of every feature; what it needs is passed instead."""
    assert set(takes_a_launch(read_sources())) == HANDLES


def test_a_function_that_takes_a_whole_launch_is_found() -> None:
    sources = {"xmp.a": "def f(launch: Launch | None) -> None: ...", "xmp.b": "class Launch: ..."}
    assert takes_a_launch(sources) == ["xmp.a.f"]


def test_rules_import_rules_and_words_alone() -> None:
    """They have no clock and no socket, so that tests are tables."""
    allowed = (
        "__future__",
        "collections",
        "dataclasses",
        "re",
        "typing",
        "xmp._rules",
        "xmp._words",
    )
    found = [
        f"{module} imports {name}"
        for module, text in read_sources().items()
        if module.startswith("xmp._rules.")
        for name in imports(module, text)
        if not name.startswith(allowed)
    ]
    assert found == []


def test_a_circle_of_three_files_is_found() -> None:
    sources = {
        "xmp.a": "from . import b",
        "xmp.b": "def f():\n    from xmp.c import g",
        "xmp.c": "from .a import h",
        "xmp.d": "from . import a",
    }
    assert circles(arrows(sources)) == [["xmp.a", "xmp.b", "xmp.c"]]
    sources["xmp.c"] = "if TYPE_CHECKING:\n    from .a import h"
    assert circles(arrows(sources)) == []
