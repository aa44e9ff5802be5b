"""The names in a function's code: a guess at what it will import."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["modules_imported", "names_used", "nested_codes"]

_MOST = 200


def names_used(fn: Callable[..., Any]) -> set[str]:
    """The names in the code of ``fn`` and of the functions beside it that it may call.

    Imports inside functions are among them. A guess is enough: one name too many costs an import
    in the template, one too few an import in every replica of the first launch.
    """
    used = {name for code in _codes_used(fn) for name in code.co_names}
    return {part for name in used for part in (name, name.partition(".")[0])}


def modules_imported(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The modules that ``fn``, and the functions beside it, import inside their bodies."""
    import dis  # here: a launch that asks for nothing need not load it

    steps = (step for code in _codes_used(fn) for step in dis.get_instructions(code))
    return tuple(dict.fromkeys(str(s.argval) for s in steps if s.opname == "IMPORT_NAME"))


def _codes_used(fn: Callable[..., Any]) -> Iterator[types.CodeType]:
    """The code of ``fn``, of the functions inside it, and of those beside it that it may call."""
    seen: set[int] = set()
    waiting: list[Any] = [fn]
    while waiting and len(seen) < _MOST:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for code, scope in _codes(value):
            codes = list(nested_codes(code))
            yield from codes
            used = {name for inner in codes for name in inner.co_names}
            waiting += [scope[name] for name in used if _beside(scope.get(name), scope)]


def _codes(value: Any) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """The code objects of a function, method, partial, class or callable object."""
    value = getattr(value, "__func__", getattr(value, "func", value))
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, types.FunctionType):
        yield value.__code__, value.__globals__
        return
    kind = value if isinstance(value, type) else type(value)
    for member in vars(kind).values():
        if isinstance(member, types.FunctionType):
            yield member.__code__, member.__globals__


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """This code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)


def _beside(value: Any, scope: dict[str, Any]) -> bool:
    """Whether a global is a function or class of the same module."""
    kinds = (types.FunctionType, type)
    return isinstance(value, kinds) and value.__module__ == scope.get("__name__")
