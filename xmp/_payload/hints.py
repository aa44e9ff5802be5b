"""The names in a function's code: a guess at what it will import.

None of the user's code runs for this, so that nothing can block before a process exists:
isinstance asks ``__class__``, and an attribute may be a descriptor, or answered by a metaclass.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["modules_imported", "names_used", "nested_codes"]

_MOST = 200
_MEMBERS: Any = type.__dict__["__dict__"]
_BASES: Any = type.__dict__["__mro__"]
_MODULE: Any = type.__dict__["__module__"]
_CALLED: Any = vars(functools.partial)["func"]


def names_used(fn: Callable[..., Any]) -> set[str]:
    """Return the names in the code of ``fn`` and of the functions beside it that it may call.

    Imports inside functions are among them. A guess is enough: one name too many costs an import
    in the template, one too few an import in every replica of the first launch.
    """
    used = {name for code in _codes_used(fn) for name in code.co_names}
    return {part for name in used for part in (name, name.partition(".")[0])}


def modules_imported(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the modules that ``fn``, and the functions beside it, import inside their bodies."""
    import dis  # here: a launch that asks for nothing need not load it

    steps = (step for code in _codes_used(fn) for step in dis.get_instructions(code))
    return tuple(dict.fromkeys(str(s.argval) for s in steps if s.opname == "IMPORT_NAME"))


def _codes_used(fn: Callable[..., Any]) -> Iterator[types.CodeType]:
    """Yield the code of ``fn``, of functions inside it, and of those beside it that it may call."""
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
    """Yield the code objects of a function, method, partial, class or callable object."""
    value = _inner(value)
    if type(value) is types.FunctionType:
        yield value.__code__, value.__globals__
        return
    kind = value if issubclass(type(value), type) else type(value)
    for member in _MEMBERS.__get__(kind).values():
        if type(member) is types.FunctionType:
            yield member.__code__, member.__globals__


def _inner(value: Any) -> Any:
    """Return what a method, a partial or a decorated function calls."""
    if type(value) is types.MethodType:
        value = value.__func__
    elif issubclass(type(value), functools.partial):
        value = _CALLED.__get__(value)
    own = _own_dict(value)
    return own.get("__wrapped__", value) if type(own) is dict else value


def _own_dict(value: Any) -> Any:
    """Return the ``__dict__`` of an object, not that of a property of this name."""
    for kind in _BASES.__get__(type(value)):
        found = _MEMBERS.__get__(kind).get("__dict__")
        if type(found) is types.GetSetDescriptorType:
            return found.__get__(value)
    return None


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield this code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)


def _beside(value: Any, scope: dict[str, Any]) -> bool:
    """Return whether a global is a function or class of the same module."""
    if type(value) is types.FunctionType:
        module = value.__module__
    elif issubclass(type(value), type):
        module = _MODULE.__get__(value)
    else:
        return False
    return type(module) is str and module == scope.get("__name__")
