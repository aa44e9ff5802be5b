"""Finds what part of a call or a result cannot be pickled: its path, as ``args[0].cfg['lock']``.

Each part is pickled alone. Only a launch that fails imports this.
"""

from __future__ import annotations

import functools
import io
import re
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from xmp._os import signals
from xmp._os.excepthook import interrupts_kept

from .collector import Collector, HostsCollector, spawning
from .hints import nested_codes
from .pickler import (
    CallPickler,
    HostsCallPickler,
    OutcomePickler,
    by_value_modules,
    is_test_case,
    without_its_run,
)

__all__ = ["of_call", "of_result", "users_part"]

_SECONDS = 2.0  # after that, the innermost part known so far is named
_DEEPEST = 20
_LONGEST_KEY = 40

_PICKLING = ("xmp.", "cloudpickle.", "pickle", "contextlib", "multiprocessing.", "copyreg")
"""Modules whose frames say nothing of the value."""

_OF_FUNCTION = re.compile("'s (variable|global|default)")
_CAPTURED = (
    ". A function that travels by value takes what it refers to along: make this inside the "
    "function, or define both in a module that replicas can import"
)

_MADE_THERE = ". Make it in the function, or pass what it is made of: a path, a number"

Part = tuple[str, Any]
Reason = Callable[[Any], BaseException | None]
"""Pickles a value alone and returns the error that this raises, or None."""


class Culprit(NamedTuple):
    """The innermost part that cannot be pickled, and why."""

    path: str
    value: Any
    reason: BaseException

    def __str__(self) -> str:
        """Return the path, and the type of what is there."""
        return f"{self.path} ({type(self.value).__name__})"


def of_call(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], for_hosts: bool
) -> tuple[str, BaseException] | None:
    """Return an error's text, which names the part that cannot be pickled, and the reason.

    None if each part can be pickled. ``for_hosts`` is as in ``pack``.
    """
    parts = [("fn", fn), *((f"args[{i}]", a) for i, a in enumerate(args))]
    parts += [(f"kwargs[{name!r}]", value) for name, value in kwargs.items()]
    with by_value_modules(fn):
        for path, value in parts:
            found = _find(path, value, functools.partial(_entering, path != "fn", for_hosts))
            if found is not None:
                advice = _CAPTURED if _OF_FUNCTION.search(found.path) else _MADE_THERE
                text = f"{found} cannot be sent to the replicas: {found.reason}{advice}"
                return text, found.reason
    return None


def of_result(value: Any) -> str:
    """Return in words what part of a result cannot be pickled."""
    return str(_find("the result", value, _leaving) or f"the result ({type(value).__name__})")


def users_part(error: BaseException) -> BaseException | None:
    """Return the error with the frames of the user's reducers alone; None if no such code ran."""
    frames = error.__traceback__
    while frames is not None:
        if not str(frames.tb_frame.f_globals.get("__name__")).startswith(_PICKLING):
            return error.with_traceback(frames)
        frames = frames.tb_next
    return None


# --- pickling a part alone -----------------------------------------------------------------------


def _entering(sharing: bool, for_hosts: bool, value: Any) -> BaseException | None:
    """Pickle a value as an argument (``sharing`` tensors) or the function is; return the error."""
    collector = HostsCollector() if for_hosts else Collector()
    pickler = HostsCallPickler if for_hosts else CallPickler
    try:
        with spawning(collector), interrupts_kept(), signals.as_usual(insists=True):
            pickler(io.BytesIO(), [], sharing).dump(value)
    except Exception as reason:
        if signals.from_handler(reason):
            raise
        return reason
    finally:
        collector.close()
    return None


def _leaving(value: Any) -> BaseException | None:
    try:
        OutcomePickler(io.BytesIO(), []).dump(value)
    except Exception as reason:
        return reason
    return None


# --- the search ----------------------------------------------------------------------------------


def _find(path: str, value: Any, reason_of: Reason) -> Culprit | None:
    """Return the innermost part of ``value`` that cannot be pickled; None if all of it can be."""
    reason = reason_of(value)
    if reason is None:
        return None
    outer = Culprit(path, value, reason)
    search = _Search(reason_of, {id(value)}, time.monotonic() + _SECONDS)
    try:
        return search.innermost(outer, _DEEPEST) or outer
    except RecursionError:
        return outer


class _Search(NamedTuple):
    """A search for the innermost part that cannot be pickled."""

    reason_of: Reason
    seen: set[int]
    """The ids of parts that cannot be pickled and have been searched."""
    end: float

    def innermost(self, found: Culprit, levels: int) -> Culprit | None:
        """Return the part to blame within ``found``, or itself; None if it refers to one seen.

        An object that cannot be pickled only because of what contains it is not to blame.
        """
        if not levels:
            raise RecursionError  # nested too deeply for pickle: no part of it is to blame
        refers_back = False
        for suffix, part in _parts(found.value):
            if time.monotonic() > self.end:
                return found
            if id(part) in self.seen:
                refers_back = True
                continue
            reason = self.reason_of(part)
            if reason is None:
                continue
            self.seen.add(id(part))
            deeper = self.innermost(Culprit(found.path + suffix, part, reason), levels - 1)
            if deeper is not None:
                return deeper
            refers_back = True
        return None if refers_back else found


def _parts(value: Any) -> Iterator[Part]:
    if isinstance(value, dict):
        yield from _entries(value)
    elif isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", None)
        for i, part in enumerate(value):
            yield (f".{fields[i]}" if fields else f"[{i}]"), part
    elif isinstance(value, (set, frozenset)):
        yield from ((", an element", part) for part in value)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{i}]", part) for i, part in enumerate(value.args))
        yield from ((f".keywords{key}", part) for key, part in _entries(value.keywords))
    elif isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items())
    else:
        yield from _of_object(value)


def _entries(mapping: Mapping[Any, Any]) -> Iterator[Part]:
    for key, part in mapping.items():
        yield f"[{_short(key)}]", part
        yield f", its key {_short(key)}", key


def _short(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:  # the user's code
        text = f"a {type(key).__name__}"
    return text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}…"


def _of_function(function: types.FunctionType) -> Iterator[Part]:
    """Yield what travels with a function by value: captured variables, used globals, defaults."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    for name, cell in cells:
        if cell != types.CellType():  # an empty one has no contents yet
            yield f"'s variable {name}", cell.cell_contents
    used = {name: None for code in nested_codes(function.__code__) for name in code.co_names}
    for name in used:
        if name in function.__globals__:
            yield f"'s global {name}", function.__globals__[name]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    for name, part in zip(names[len(names) - len(defaults) :], defaults):
        yield f"'s default of {name}", part
    for name, part in (function.__kwdefaults__ or {}).items():
        yield f"'s default of {name}", part


def _of_object(value: Any) -> Iterator[Part]:
    """Yield what its class gives to pickle: attributes, items, arguments of a constructor."""
    try:
        reduced = without_its_run(value) if is_test_case(value) else value.__reduce_ex__(5)
    except Exception:  # it says itself that it cannot be pickled
        return
    if not isinstance(reduced, tuple):
        return
    arguments, state, items, entries = (list(reduced[1:5]) + [None] * 4)[:4]
    for attributes in state if isinstance(state, tuple) else (state,):
        if isinstance(attributes, dict):
            yield from ((f".{name}", part) for name, part in attributes.items())
        elif attributes is not None:
            yield ", what its __getstate__ returns", attributes
    for i, part in enumerate(items or ()):
        yield f"[{i}]", part
    for key, part in entries or ():
        yield f"[{_short(key)}]", part
    for part in arguments or ():
        if not isinstance(part, (type, types.FunctionType)):
            yield ", what its __reduce__ returns", part
