"""The script's ``__main__``: where it came from, and how to import it again in another process.

As in multiprocessing, the copy is imported under the name ``__mp_main__``, so that what is under
``if __name__ == "__main__":`` does not run. A script without that guard calls ``spawn`` again
while it is imported: the import stops there, and what is above the call is enough.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import io
import linecache
import os
import sys
import types
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xmp._os import signals

__all__ = [
    "MainReached", "MainSource", "Program", "apart", "belongs_to_an_app", "import_main",
    "imported_names", "importing_main", "is_below_guard", "is_guard", "is_kept",
    "line_outside_guard", "main_is_shared", "main_source", "program_of_this_process",
]  # fmt: skip


class MainSource(NamedTuple):
    """How to import the script: ``kind`` is "path", "name" (python -m) or "text"."""

    kind: str
    value: str
    path: str
    package: str | None = None
    """The package that a text belongs to, under ``python -m``: for relative imports."""


_DYNAMIC = frozenset({"exec", "globals", "locals", "setattr", "vars"})
"""Functions that may bind names which cannot be read in the source."""


class MainReached(BaseException):
    """The script, imported a second time, has reached its own call of ``spawn``."""


_importing = False
_stops = 0
"""The line of a launch outside the guard: an import of the script stops there (MainReached)."""
_shared = False
_apart = False


def main_is_shared(is_shared: bool | None = None) -> bool:
    """Return whether this process was forked from the launcher and has the very same ``__main__``.

    The code that forks sets it once; then everything in ``__main__`` travels by reference.
    """
    global _shared
    if is_shared is not None:
        _shared = is_shared
    return _shared


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Within the block, import nothing from the script again: its definitions travel by value."""
    global _apart
    before, _apart = _apart, True
    try:
        yield
    finally:
        _apart = before


def importing_main() -> bool:
    """Return whether this process is importing a script for a launch."""
    return _importing


def main_source() -> MainSource | None:
    """Return where ``__main__`` came from; None for cells, ``-c``, standard input etc."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None)
    if main is None or path is None or getattr(sys, "frozen", False) or _apart:
        return None
    # /dev/stdin is a file where the shell has redirected it, and another one in each process.
    if os.path.abspath(path).startswith(("/dev/", "/proc/")) or belongs_to_an_app():
        return None
    if spec is not None:
        # `python -m package` runs package.__main__, which seldom has a guard: do not import it.
        if spec.name == "__main__" or spec.name.endswith(".__main__"):
            return None
        return MainSource("name", spec.name, os.path.abspath(path))
    path = os.path.abspath(path)
    return MainSource("path", path, path) if os.path.isfile(path) else None


def is_kept(path: str) -> bool:
    """Return whether another process can read this file too, and twice: no FIFO, no descriptor.

    /dev/stdin is a file where the shell has redirected it, and another one in each process.
    """
    return os.path.isfile(path) and not os.path.abspath(path).startswith(("/dev/", "/proc/"))


def belongs_to_an_app() -> bool:
    """Return whether marimo or Streamlit runs the file piece by piece, as an import would not.

    A cell of marimo is a function in its file, and what is under ``if st.button(...):`` runs once
    the user has pressed it.
    """
    in_marimo = getattr(sys.modules.get("marimo"), "running_in_notebook", None)
    if in_marimo is not None and in_marimo():
        return True
    streamlit = sys.modules.get("streamlit.runtime.scriptrunner")
    context = getattr(streamlit, "get_script_run_ctx", None)
    return context is not None and context(suppress_warning=True) is not None


def imported_names(path: str) -> frozenset[str] | None:
    """Return the names that a process finds when it imports the script; None if unknown.

    Left out is what travels by value: what the script defines under ``if __name__ ==
    "__main__":``, below its first launch if that is above the guard, in its functions (as marimo
    does for a cell) or by ``exec``.
    """
    global _stops
    _stops = _stops or line_outside_guard(path)
    found = _defined(_statements(path), _stops or sys.maxsize)
    return None if "*" in found or not _statements(path) else frozenset(found)


def line_outside_guard(path: str) -> int:
    """Return the line of the script that is calling a function now; 0 if it is under the guard."""
    main, frame = sys.modules["__main__"].__dict__, sys._getframe()
    if os.path.abspath(main.get("__file__") or "") != path:
        return 0
    while frame.f_globals is not main or frame.f_code.co_name != "<module>":
        if frame.f_back is None:
            return 0  # in another thread
        frame = frame.f_back
    line = frame.f_lineno
    for node in _statements(path):
        if node.lineno <= line <= (node.end_lineno or 0):
            return 0 if isinstance(node, ast.If) and is_guard(node.test) else line
    return 0


@functools.lru_cache(maxsize=8)
def _statements(path: str) -> tuple[ast.stmt, ...]:
    """Return the script's statements; none where it cannot be read."""
    with signals.deferred():  # what a handler raises does not mean that it cannot be read
        try:
            with io.open_code(path) as file:
                return tuple(ast.parse(file.read()).body)
        except (OSError, SyntaxError, ValueError):
            return ()


def is_below_guard(path: str, name: str) -> bool:
    """Return whether the launcher's ``__main__`` has a name that an import of the script lacks."""
    known = imported_names(path)
    main = vars(sys.modules["__main__"])
    return known is not None and name not in known and name in main


def is_guard(test: ast.expr) -> bool:
    """Return whether a condition is that of a script's main part."""
    return isinstance(test, ast.Compare) and ast.unparse(test).replace("'", '"') in (
        '__name__ == "__main__"',
        '"__main__" == __name__',
    )


def _defined(body: Sequence[ast.stmt], end: int) -> set[str]:
    """Return the names that a module's statements bind above line ``end``, without its guard's."""
    names: set[str] = set()
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if getattr(node, "lineno", 0) >= end:
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.If) and is_guard(node.test):
            waiting += node.orelse
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            # What ``*`` imports belongs to another module, and is found there.
            found = (each.asname or each.name for each in node.names if each.name != "*")
            names |= {name.partition(".")[0] for name in found}
        elif isinstance(node, ast.Name):
            if node.id in _DYNAMIC:
                names.add("*")
            elif isinstance(node.ctx, ast.Store):
                names.add(node.id)
        else:
            waiting += ast.iter_child_nodes(node)
    return names


def import_main(source: MainSource) -> None:
    """Import the script as ``__mp_main__``, and make it ``__main__`` as well.

    Raises what the script raises; SystemExit becomes ImportError.
    """
    global _importing
    module = types.ModuleType("__mp_main__")
    code = _code_of(source, module)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    _importing = True
    try:
        exec(code, module.__dict__)
    except MainReached:
        pass
    except SystemExit as error:
        raise ImportError(
            f"{source.path} exited with {error.code!r} when it was imported"
        ) from None
    finally:
        _importing = False


def _code_of(source: MainSource, module: types.ModuleType) -> types.CodeType:
    module.__file__ = source.path
    if source.kind == "text":
        module.__package__ = source.package
        lines = source.value.splitlines(keepends=True)
        linecache.cache[source.path] = (len(source.value), None, lines, source.path)
        return compile(source.value, source.path, "exec", dont_inherit=True)
    if source.kind == "name":
        spec = importlib.util.find_spec(source.value)
        get_code = getattr(getattr(spec, "loader", None), "get_code", None)
        if spec is None or get_code is None:
            raise ImportError(f"cannot import the main module {source.value} again")
        module.__package__ = spec.parent
        code: types.CodeType = get_code(source.value)
        return code
    module.__package__ = None
    with io.open_code(source.path) as file:
        return compile(file.read(), source.path, "exec", dont_inherit=True)


# --- the program of this command line, which run_script runs once more ---------------------------


class Program(NamedTuple):
    """What Python runs; ``kind`` is that of a ``ScriptRun``."""

    kind: str
    target: str
    source: str
    """The path of its file."""
    package: str = ""
    """The package of which it is part, under ``-m``."""


def program_of_this_process() -> Program | None:
    """Return what ``__main__`` was started from; None for cells, ``-c``, standard input etc."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or getattr(sys, "frozen", False) or belongs_to_an_app():
        return None
    spec = getattr(main, "__spec__", None)
    if spec is None:
        path = os.path.abspath(path)
        return Program("path", _as_typed(path), path) if is_kept(path) else None
    if spec.name == "__main__":
        return Program("folder", sys.argv[0], path)
    return Program("module", spec.name, path, spec.parent or "")


def _as_typed(path: str) -> str:
    """Return the script's ``sys.argv[0]``; its path if the program changed that or its folder."""
    typed = sys.argv[0] if sys.argv else ""
    return typed if typed and os.path.abspath(typed) == path else path
