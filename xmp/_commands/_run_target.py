"""What ``xmp run`` is asked to run: found and read before any process exists, but not run."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import traceback
import zipfile
from importlib.machinery import ModuleSpec
from typing import NamedTuple

from xmp._inside.script_runs import script_folder
from xmp._payload.frameworks_used import Uses, frameworks_used
from xmp._payload.script import is_kept
from xmp._payload.top_imports import find_module, imports_of_file
from xmp._words.errors import PlanError, XmpError, visible

__all__ = ["Target", "read", "text_of"]


class Target(NamedTuple):
    """What each replica runs."""

    kind: str
    """As in ``ScriptRun``."""
    imports: tuple[str, ...] = ()
    """The installed modules that it imports at its top."""
    uses: Uses = Uses()
    """The frameworks that it uses beside these."""
    source: bytes | None = None
    """Its text, where replicas could not read it: /dev/stdin, /dev/fd/63, a FIFO."""


def read(options: argparse.Namespace) -> Target:
    """Find the target, and what it imports; run nothing of it.

    Raise PlanError if it is not there, XmpError for a script that cannot be compiled.
    """
    if options.no_python:
        return _program(options)
    if options.module:
        path, package = _module_file(options.target)
        return _python("module", path, os.getcwd(), package) if path else Target("module")
    path = options.target
    if os.path.isdir(path):
        return _folder(path)
    if not os.path.exists(path):
        raise PlanError(
            f"{path} does not exist: give the path of a script (/dev/stdin for standard input), or "
            "-m and a module",
            code="XMP-P13",
        )
    if os.path.isfile(path) and zipfile.is_zipfile(path):
        return _zip_file(path)
    source = None if is_kept(path) else text_of(path)
    return _python("path", path, script_folder(path), source=source)


def text_of(path: str) -> bytes:
    """Return the whole script. Raise PlanError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}", code="XMP-P13") from None


def _folder(path: str) -> Target:
    main = os.path.join(path, "__main__.py")
    if not os.path.isfile(main):
        raise PlanError(
            f"{path} is a folder without a __main__.py: give the path of a script", code="XMP-P13"
        )
    return _python("folder", main, path)


def _zip_file(path: str) -> Target:
    main = os.path.join(path, "__main__.py")
    try:
        imports = imports_of_file(main, path)
    except (OSError, SyntaxError, ValueError):  # it may have compiled modules alone
        imports = ()
    return Target("folder", imports, frameworks_used(main, path))


def _python(
    kind: str, path: str, folder: str, package: str = "", source: bytes | None = None
) -> Target:
    uses = frameworks_used(path, folder, package, source)
    return Target(kind, _imports(path, folder, source), uses, source)


def _program(options: argparse.Namespace) -> Target:
    for name in ("module", "seed", "backend", "hang_timeout"):
        if getattr(options, name):
            word = f"--{name.replace('_', '-')}"
            raise PlanError(
                f"{word} and --no-python: only Python can do that; leave {word} out", code="XMP-P02"
            )
    if shutil.which(options.target) is None:
        there = os.path.isfile(options.target)
        what = "is not executable (chmod +x)" if there else "is not found, nor on the PATH"
        raise PlanError(f"--no-python: the program {options.target} {what}", code="XMP-P13")
    return Target("program")


def _imports(path: str, folder: str, source: bytes | None) -> tuple[str, ...]:
    try:
        return imports_of_file(path, folder, source)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}", code="XMP-P13") from None
    except (SyntaxError, ValueError) as error:
        # As Python says it, and with its exit status.
        lines = traceback.format_exception_only(type(error), error)
        raise XmpError(
            f"{visible(path)} cannot be compiled:\n{''.join(lines).rstrip()}", code="XMP-P13"
        ) from None


def _module_file(name: str) -> tuple[str, str]:
    """Return the source of the module, empty where it has another form, and its package.

    Import nothing of it.
    """
    around = name.rpartition(".")[0]
    spec = _found(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec, around = _found(f"{name}.__main__"), name
        if spec is None:
            raise PlanError(f"-m {name}: it is a package without a __main__ module", code="XMP-P13")
    if spec is None:
        raise PlanError(
            f"-m {name}: there is no such module in {os.getcwd()}, or installed", code="XMP-P13"
        )
    source = spec.origin or ""
    return source if spec.has_location and source.endswith(".py") else "", around


def _found(name: str) -> ModuleSpec | None:
    spec = find_module(name, [os.getcwd(), *sys.path[1:]])
    if spec is not None:
        return spec
    root, _, rest = name.partition(".")
    # An editable installation may have a finder of its own, which this knows.
    outer = importlib.util.find_spec(root) if root.isidentifier() else None
    places = outer.submodule_search_locations if outer is not None else None
    if not rest or places is None:
        return None if rest else outer
    return find_module(name, list(places), skip=1)
