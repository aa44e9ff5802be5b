"""Gives test modules in replicas the asserts that pytest gives them, which show values.

pytest's import hook belongs to its session and works in its own process only.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import marshal
import sys
import types
import warnings
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

__all__ = ["Rewriting", "begin"]


_made: dict[str, bytes] = {}
"""In the launcher: the code of the module of the last call's function, by its file."""


class Rewriting:
    """Part of a packed call, before the function: loading it has these modules' asserts rewritten.

    The code of the function's module is sent along: to rewrite 400 lines takes 30 ms, and most
    launches need no other module of the tests.
    """

    def __init__(self, modules: Iterable[types.ModuleType], own: str | None) -> None:
        self.files = {module.__name__: module.__file__ or "" for module in modules}
        """The file of each module, by name."""
        self.codes = {}
        """Code as ``marshal`` writes it, by file."""
        if own in self.files:
            file = self.files[own]
            with contextlib.suppress(Exception):  # an error in the source is raised by the import
                code = _made.get(file) or marshal.dumps(_rewritten(Path(file)))
                _made.clear()
                _made[file] = code
                self.codes = {file: code}

    def __reduce__(self) -> tuple[Any, ...]:
        return begin, (self.files, self.codes)


def begin(files: dict[str, str], codes: dict[str, bytes]) -> None:
    """Have these modules imported as by pytest, where this process finds them in the same files."""
    for finder in sys.meta_path:
        if isinstance(finder, _RewritingFinder):
            finder.files, finder.codes = files, codes
            return
    sys.meta_path.insert(0, _RewritingFinder(files, codes))


class _RewritingFinder:
    def __init__(self, files: dict[str, str], codes: dict[str, bytes]) -> None:
        self.files = files
        self.codes = codes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        file = self.files.get(name)
        spec = None if file is None else PathFinder.find_spec(name, path, target)
        if file is None or spec is None or spec.origin != file:
            return None
        if type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(name, file, self.codes.get(file))
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, file: str, code: bytes | None) -> None:
        super().__init__(name, file)
        self._code = code

    def get_code(self, fullname: str) -> types.CodeType | None:
        try:
            code = None if self._code is None else marshal.loads(self._code)
            return code if isinstance(code, types.CodeType) else _rewritten(Path(self.path))
        except Exception:  # not this pytest's; an error in the source is raised again
            return super().get_code(fullname)


def _rewritten(path: Path) -> types.CodeType:
    """Return the rewritten code, cached by pytest or made here.

    As in pytest 7 to 9, _pytest/assertion/rewrite.py.
    """
    pytests: Any = importlib.import_module("_pytest.assertion.rewrite")
    cached = pytests.get_cache_dir(path) / (path.stem + pytests.PYC_TAIL)
    code = pytests._read_pyc(path, cached)
    if isinstance(code, types.CodeType):
        return code
    source = path.read_bytes()
    tree = ast.parse(source, str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pytest has shown them already
        pytests.rewrite_asserts(tree, source, str(path))
        made: types.CodeType = compile(tree, str(path), "exec", dont_inherit=True)
    return made
