"""The variables that a failed replica has sent, as values for ``error.locals``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["Shown", "Variables", "loaded"]


class Shown(str):
    """The description of a value not sent: ``<torch.Tensor (2, 5) torch.float32 on cpu>``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Variables(dict[str, Any]):
    """The variables of one frame, by name; ``where`` is the frame's file, line and function."""

    where = ""

    def __repr__(self) -> str:
        lines = [f"  {name} = {value!r}" for name, value in self.items()]
        return "\n".join([f"{self.where}:", *lines])


def loaded(text: str) -> tuple[Variables, ...]:
    """Return the frames, innermost first; none if no replica of xmp sends such a text."""
    try:
        frames = []
        for where, pairs in json.loads(text) if text else ():
            frame = Variables({str(name): _value(value) for name, value in pairs})
            frame.where = str(where)
            frames.append(frame)
        return tuple(frames)
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()


def _value(value: Any) -> Any:
    if isinstance(value, list):
        kind, content = value
        return _KINDS[kind](content)
    return value


def _items(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda content: kind([_value(each) for each in content])


_KINDS: dict[str, Callable[[Any], Any]] = {
    "shown": Shown,
    "bytes": bytes.fromhex,
    "complex": lambda content: complex(*content),
    "list": _items(list),
    "tuple": _items(tuple),
    "set": _items(set),
    "frozenset": _items(frozenset),
    "dict": lambda content: {_value(key): _value(below) for key, below in content},
}
