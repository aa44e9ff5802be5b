"""Check that a function can be called as replicas call it, before any process exists.

What cannot be known from here (functions of C, decorated ones that take ``*args``) is not refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xmp._os import signals
from xmp._words.errors import brief, wrong_type

__all__ = ["LAUNCHES", "check_arguments", "check_body", "check_function", "check_rankless"]

LAUNCHES = "_xmp_launches"
"""The attribute of functions that ``launcher`` has decorated."""
_STARRED: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_SHOWN = 8  # names of a long list


def check_function(fn: object, args: object, kwargs: object) -> None:
    """Raise TypeError unless ``fn(rank, *args, **kwargs)`` is a call that runs ``fn``."""
    if not callable(fn):
        raise wrong_type("fn", "callable", fn)
    if LAUNCHES in getattr(fn, "__dict__", ()):
        raise TypeError(
            f"{_name(fn)} launches itself, since xmp.launcher has decorated it: call it, without a "
            "rank. What spawn launches takes the rank as its first argument"
        )
    if not isinstance(args, (tuple, list)):
        raise wrong_type("args", "a tuple or a list", args)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise wrong_type("kwargs", "a dict", kwargs)
    if kwargs and not all(isinstance(name, str) for name in kwargs):
        raise TypeError(f"kwargs must have strings as keys: {brief(kwargs)}")
    with signals.deferred():  # what a handler raises says nothing of the function
        signature = _signature(fn)
        if signature is not None:
            _check_arguments(fn, signature, args, kwargs or {})
        _check_kind(fn, "rank, ")


def check_body(fn: object) -> None:
    """Raise TypeError unless ``fn`` is a function that ``launcher`` can decorate."""
    if isinstance(fn, (staticmethod, classmethod, property)):
        kind = type(fn).__name__
        raise TypeError(f"launcher decorates functions: write @{kind} above @xmp.launcher")
    if not callable(fn):
        raise TypeError(f"launcher decorates functions, not {type(fn).__name__}: {brief(fn)}")
    if inspect.isclass(fn):
        raise TypeError(
            f"launcher decorates functions, and {_name(fn)} is a class. Decorate its method, or a "
            "function that makes the object and uses it"
        )
    with signals.deferred():
        _check_kind(fn, "")


def check_rankless(fn: object, args: object) -> None:
    """Raise TypeError unless ``fn(*args)``, without a rank, is a call that runs ``fn``."""
    if not callable(fn):
        raise wrong_type("func", "callable", fn)
    if LAUNCHES in getattr(fn, "__dict__", ()):
        raise TypeError(
            f"{_name(fn)} launches itself, since xmp.launcher has decorated it: call it"
        )
    if not isinstance(args, (tuple, list)):
        raise wrong_type("args", "a tuple or a list", args)
    with signals.deferred():
        _check_kind(fn, "")
    check_arguments(fn, args, {})


def check_arguments(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError unless ``fn(*args, **kwargs)`` fits how ``fn`` is declared."""
    with signals.deferred():
        signature = _signature(fn)
        if signature is None:
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{_name(fn)}{_declared(signature)}: {error}") from None


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """How the call of ``fn`` itself is declared; None where that is not known.

    Not that of a function which a decorator has wrapped: the decorator may add arguments. A
    ``__signature__`` is what a library shows, and functools.wraps copies it to the wrapper.
    """
    inner: Any = fn
    while isinstance(inner, functools.partial) or inspect.ismethod(inner):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    try:
        if "__signature__" in getattr(inner, "__dict__", ()):
            return None
        return inspect.signature(fn, follow_wrapped=False)
    except Exception:  # built-ins have none, and __getattr__ of an object is the user's code
        return None


def _check_arguments(
    fn: Callable[..., Any],
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    try:
        signature.bind(0, *args, **kwargs)
    except TypeError as error:
        name = _name(fn)
        positional = [f"args[{i}]" for i in range(len(args))]
        given = _some(["rank", *positional, *(f"{key}=…" for key in kwargs)])
        raise TypeError(
            f"fn is {name}{_declared(signature)}, and replicas call {name}({given}): {error}. The "
            "first parameter of fn is the rank; args= and kwargs= give the others"
        ) from None


def _declared(signature: inspect.Signature) -> str:
    """Write the parameters without defaults and annotations, whose repr may be long or slow."""
    shown = [_STARRED.get(p.kind, "") + p.name for p in signature.parameters.values()]
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return f"({_some(shown)})"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN] + (["…"] if len(names) > _SHOWN else []))


def _check_kind(fn: Callable[..., Any], first: str) -> None:
    """Refuse a function whose call only makes a generator or a coroutine, and runs nothing."""
    called: Any = fn
    while isinstance(called, functools.partial):
        called = called.func
    if not (inspect.isroutine(called) or inspect.isclass(called)):
        called = type(called).__call__
    name = _name(fn)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(
            f"fn is {name}, a generator function: a call of it runs nothing. Give a function that "
            f"runs it and returns what you need, such as the list of what it yields"
        )
    if inspect.iscoroutinefunction(called):
        raise TypeError(
            f"fn is {name}, an async function: a call of it runs nothing. Give a function that "
            f"runs it: def main({first}*args): return asyncio.run({name}({first}*args))"
        )


def _name(fn: Callable[..., Any]) -> str:
    if isinstance(fn, functools.partial):
        return f"partial({_name(fn.func)})"
    return str(getattr(fn, "__name__", None) or type(fn).__name__)
