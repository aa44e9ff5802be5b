"""The packages that a script imports at its top, read from its source without running it.

What cannot be read here, Python reads later in a replica, and reports what is wrong with it.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder

from xmp._os.imports import site_folders, without_collections
from xmp._plan.runtimes._base import matches
from xmp._plan.runtimes._known_variables import FIRST_USE, IMPORT_TIME

__all__ = [
    "MOST", "at_the_top", "changes_what_imports_read", "find_module", "imported_modules",
    "imports_of_file", "installed_imports", "parsed", "runs_later",
]  # fmt: skip

_WRITES = ("setdefault", "update", "putenv", "pop")


def imports_of_file(path: str, folder: str, source: bytes | None = None) -> tuple[str, ...]:
    """Return ``installed_imports`` of a file.

    Raises OSError where it cannot be read, and SyntaxError or ValueError where it is no Python.
    """
    return installed_imports(parsed(path, source=source), folder)


def installed_imports(tree: ast.Module, folder: str) -> tuple[str, ...]:
    """Return the installed modules that a script of this folder imports, in its order.

    Left out are the user's own modules, which may read a rank when they are imported; what is
    imported only in functions; and what follows a change of a variable that an import may read: a
    process that imports these modules beforehand has the variable's old value.
    """
    path, places = [folder, *sys.path[1:]], site_folders()
    found: dict[str, None] = {}
    for node in at_the_top(tree):
        if changes_what_imports_read(node):
            break
        for name in imported_modules(node):
            spec = find_module(name, path) if _may_be_installed(name) else None
            if spec is not None and (spec.origin or "").startswith(places):
                found[name] = None
    return tuple(found)


def find_module(name: str, path: Sequence[str], skip: int = 0) -> ModuleSpec | None:
    """Return the spec by which a module would be imported, without importing its parents.

    importlib's would import them. ``path`` is where its part number ``skip`` is looked for: of
    ``a.b`` that is ``a``, or ``b``. None also where a finder fails: finders may be those of other
    packages.
    """
    parts, places = name.split("."), list(path)
    spec = None
    for count in range(skip, len(parts)):
        try:
            spec = _spec(parts[: count + 1], places)
            places = list((spec and spec.submodule_search_locations) or ())
        except Exception:
            return None
        if spec is None:
            return None
    return spec


def _spec(parts: Sequence[str], places: Sequence[str]) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(".".join(parts), places)
    except KeyError:
        # A package without __init__.py asks for its parent in sys.modules, and that is not imported
        # (CPython's _NamespacePath). Finders of files and zip files use only the last part.
        return PathFinder.find_spec(parts[-1], places)


def _may_be_installed(name: str) -> bool:
    root = name.partition(".")[0]
    return root not in sys.stdlib_module_names and root != "xmp"


def at_the_top(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what runs with the module, in the order of the source: no body of a function.

    Does not recurse: long chains of ``elif`` or ``+`` are deep trees.
    """
    waiting: list[ast.AST] = [*tree.body[::-1]]
    while waiting:
        node = waiting.pop()
        if runs_later(node):
            continue
        yield node
        waiting += [*ast.iter_child_nodes(node)][::-1]


def runs_later(node: ast.AST) -> bool:
    """Return whether what is inside runs only at a call, or is read by type checkers alone."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return True
    return isinstance(node, ast.If) and _is_for_types(node.test)


def _is_for_types(test: ast.expr) -> bool:
    """Return whether the condition names ``TYPE_CHECKING``."""
    names = (getattr(node, "id", None) or getattr(node, "attr", "") for node in ast.walk(test))
    return "TYPE_CHECKING" in names


def imported_modules(node: ast.AST) -> Iterable[str]:
    """Return what an import statement imports; of ``from a import b`` both ``a`` and ``a.b``."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return ()


def changes_what_imports_read(node: ast.AST) -> bool:
    """Return whether a node sets in ``os.environ`` a variable that an import reads, or may read."""
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
    if isinstance(node, ast.Attribute):
        return node.attr == "environ" and isinstance(node.value, ast.Name) and node.value.id == "os"
    return isinstance(node, ast.Name) and node.id == "environ"


def _is_read_at_import(names: Iterable[ast.expr]) -> bool:
    """Return whether an import may read one of these variables; a name not constant may be any."""
    for name in names:
        value = name.value if isinstance(name, ast.Constant) else None
        if not isinstance(value, str):
            return True
        if matches(value, IMPORT_TIME) and not matches(value, FIRST_USE):
            return True
    return False


# --- parsing the user's sources, within limits, whatever is in them ------------------------------


MOST = 1 << 19
"""The most bytes of a file that is read; to parse a generated one takes seconds at 1 MB, and
gigabytes of memory at 10 MB."""


def parsed(path: str, most: int = MOST, source: bytes | None = None) -> ast.Module:
    """Parse a file, which may lie in a zip file; longer than ``most``, it counts as empty.

    ``source`` is what was read of it before. Raises OSError, and SyntaxError or ValueError for
    what is no Python.
    """
    source = _read(path, most + 1) if source is None else source
    if len(source) > most:
        return ast.Module([], [])
    with warnings.catch_warnings(), without_collections():
        warnings.simplefilter("ignore")  # the program shows them itself
        try:
            return ast.parse(source, os.path.abspath(path))
        except (RecursionError, MemoryError):  # nested too deeply for a tree
            return ast.Module([], [])


def _read(path: str, most: int) -> bytes:
    """Return the first bytes of a file."""
    archive, inner = _archive(path)
    if not inner:
        with open(path, "rb") as file:
            return file.read(most)
    try:
        with zipfile.ZipFile(archive) as files, files.open(inner) as member:
            return member.read(most)
    except Exception as error:  # a broken one raises errors of several kinds, zlib's among them
        raise OSError(f"{path}: {error}") from error


def _archive(path: str) -> tuple[str, str]:
    """Return the file that the path names or leads through, and the rest of the path."""
    outer, inner = path, ""
    while not os.path.exists(outer):
        outer, _, last = outer.rpartition(os.sep)
        inner = f"{last}/{inner}" if inner else last
        if not outer:
            return path, ""
    return (outer, inner) if os.path.isfile(outer) else (path, "")
