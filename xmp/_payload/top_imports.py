"""The packages that a script imports at its top, read from its source without running it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder

from xmp._imports import site_folders
from xmp._runtimes._base import matches
from xmp._runtimes._variables import FIRST_USE, IMPORT_TIME

__all__ = [
    "at_the_top",
    "changes_what_imports_read",
    "find_module",
    "imported_modules",
    "imports_of_file",
    "installed_imports",
]

_WRITES = ("setdefault", "update", "putenv", "pop")


def imports_of_file(path: str, folder: str) -> tuple[str, ...]:
    """As ``installed_imports``; raises OSError, and SyntaxError or ValueError for no Python."""
    with open(path, "rb") as file:
        return installed_imports(ast.parse(file.read(), os.path.abspath(path)), folder)


def installed_imports(tree: ast.Module, folder: str) -> tuple[str, ...]:
    """The installed modules that a script of this folder imports, in its order.

    Not the user's own modules, which may read a rank when they are imported, nor what is imported
    only in functions, nor what follows a change of a variable that an import may read: a process
    that imports these modules beforehand has the variable's old value.
    """
    path, places = [folder, *sys.path[1:]], site_folders()
    found: dict[str, None] = {}
    for statement in tree.body:
        for node in at_the_top(statement):
            if changes_what_imports_read(node):
                return tuple(found)
            for name in imported_modules(node):
                spec = find_module(name, path) if _may_be_installed(name) else None
                if spec is not None and (spec.origin or "").startswith(places):
                    found[name] = None
    return tuple(found)


def find_module(name: str, path: Sequence[str], skip: int = 0) -> ModuleSpec | None:
    """Where a module would be imported from; unlike importlib's, it imports no parent package.

    ``path`` is where its part number ``skip`` is looked for: of ``a.b`` that is ``a``, or ``b``.
    """
    parts, places = name.split("."), list(path)
    spec = None
    for count in range(skip, len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: count + 1]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return spec


def _may_be_installed(name: str) -> bool:
    root = name.partition(".")[0]
    return root not in sys.stdlib_module_names and root != "xmp"


def at_the_top(statement: ast.AST) -> Iterator[ast.AST]:
    """The statement and what runs with it, in the order of the source: no body of a function."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return
    if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
        return
    yield statement
    for child in ast.iter_child_nodes(statement):
        yield from at_the_top(child)


def imported_modules(node: ast.AST) -> Iterable[str]:
    """What an import statement imports; of ``from a import b`` both ``a`` and ``a.b``."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return ()


def changes_what_imports_read(node: ast.AST) -> bool:
    """Whether it writes ``os.environ``, and a variable that an import is known to read, or any."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return _is_environ(node.value) and _is_read_at_import([node.slice])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        function = node.func
        owner = function.value
        if function.attr not in _WRITES or not (_is_environ(owner) or function.attr == "putenv"):
            return False
        keywords = [ast.Constant(keyword.arg) for keyword in node.keywords]
        return _is_read_at_import([*node.args[:1], *keywords])
    return False


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _is_read_at_import(names: Iterable[ast.expr]) -> bool:
    """Whether one of them is, or may be, such a variable: what is no constant may be any."""
    for name in names:
        value = name.value if isinstance(name, ast.Constant) else None
        if not isinstance(value, str):
            return True
        if matches(value, IMPORT_TIME) and not matches(value, FIRST_USE):
            return True
    return False
