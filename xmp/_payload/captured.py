"""Which variable keeps a function that travels by value from being sent.

Such a function takes along what it refers to: cells of its closure, globals, defaults. Python's own
message names the type of what does not pickle, and not where it is.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

from xmp import _signals

__all__ = ["captured_culprit"]

_DEPTH = 4


def captured_culprit(fn: Any, dump: Callable[[Any], object], depth: int = _DEPTH) -> str:
    """The variable of ``fn`` that ``dump`` refuses: "'lock' (lock)"; empty where none is known."""
    function = getattr(fn, "__func__", getattr(fn, "func", fn))
    if not isinstance(function, types.FunctionType) or depth == 0:
        return ""
    for name, value in _variables(function):
        if value is function or _goes(value, dump):
            continue
        inner = captured_culprit(value, dump, depth - 1)
        if inner:
            return f"{inner}, which {name}() uses"
        return f"{name!r} ({type(value).__name__})"
    return ""


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in dict.fromkeys(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    count = function.__code__.co_argcount
    defaults = function.__defaults__ or ()
    first = count - len(defaults)
    yield from zip(function.__code__.co_varnames[first:count], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _goes(value: Any, dump: Callable[[Any], object]) -> bool:
    try:
        dump(value)
    except Exception as error:
        if _signals.from_handler(error):
            raise
        return False
    return True
