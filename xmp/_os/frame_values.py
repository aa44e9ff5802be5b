"""The variables of a failed replica's innermost frames of the user, as text.

No code of the user runs for it: ``repr`` may wait for a device, enter a collective or take
gigabytes. Values of exact built-in types are shown, arrays by shape and dtype, all else by type.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from xmp._plan.secrets import HIDDEN, is_flag, is_secret, without_secrets

__all__ = ["taken"]

_FRAMES = 3
_MOST_BYTES = 16 * 1024
_SECONDS = 0.05
_DEEPEST = 2
_MOST_NAMES, _MOST_ITEMS, _MOST_LETTERS, _MOST_BITS = 100, 16, 256, 256
_LONGEST_SECRET, _SHORTEST_SECRET = 4096, 4

_NUMBERS = (bool, float, complex)
_CONTAINERS = (list, tuple, set, frozenset)
_NAME: Any = type.__dict__["__qualname__"]
_MODULE: Any = type.__dict__["__module__"]


def taken(error: BaseException, library_of: Callable[[str], str]) -> str:
    """Return the frames as JSON, innermost first: [[where, [[name, value], …]], …]; "" without one.

    The user's frames are those in files of no library, which ``library_of`` tells.
    """
    ends = time.monotonic() + _SECONDS
    frames = [
        (where, dict(islice(names, _MOST_NAMES)))
        for where, names in _users_frames(error, library_of)
    ]
    if not frames:
        return ""
    writer = _Writer(_secrets(names for _, names in frames))
    room = _MOST_BYTES - sum(len(json.dumps(where)) + 10 for where, _ in frames)
    written: list[Any] = []
    for where, names in frames:
        pairs: list[Any] = []
        written.append([where, pairs])
        for name, value in names.items():
            pair = [name, HIDDEN if is_secret(name) else writer.value(value)]
            room -= len(json.dumps(pair)) + 2
            if room < 0 or time.monotonic() > ends:
                return json.dumps(written)
            pairs.append(pair)
    return json.dumps(written)


def _users_frames(
    error: BaseException, library_of: Callable[[str], str]
) -> Iterator[tuple[str, Iterator[tuple[str, Any]]]]:
    """Yield ("train.py:12 in step", its variables) of the innermost three, innermost first."""
    traceback, found = error.__traceback__, list[types.TracebackType]()
    while traceback is not None:
        if not library_of(traceback.tb_frame.f_code.co_filename):
            found = [traceback, *found[: _FRAMES - 1]]
        traceback = traceback.tb_next
    for each in found:
        code, names = each.tb_frame.f_code, each.tb_frame.f_locals
        # The namespace of a class's body may be an object of the user's.
        plain = type(names) is dict or type(names).__name__ == "FrameLocalsProxy"
        where = f"{code.co_filename[-200:]}:{each.tb_lineno} in {code.co_name[:100]}"
        items = iter(names.items() if plain else ())
        yield where, ((name, value) for name, value in items if not name.startswith("__"))


# --- secrets ------------------------------------------------------------------------------------


def _secrets(frames: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the texts found under names of secrets: they are hidden under other names too."""
    environment = os.environ if type(os.environ) is os._Environ else {}
    found = [value for name, value in environment.items() if is_secret(name)]
    for names in frames:
        found += _texts_below(names, False, _DEEPEST + 1)
    return frozenset(each for each in found if len(each) >= _SHORTEST_SECRET)


def _texts_below(value: Any, secret: bool, depth: int) -> Iterator[str]:
    if type(value) is str and secret and len(value) <= _LONGEST_SECRET:
        yield value
    elif type(value) is bytes and secret and len(value) <= _LONGEST_SECRET:
        yield value.decode("utf-8", "replace")
    elif type(value) is dict and depth:
        whole = _is_described_secret(value)
        for key, below in islice(value.items(), _MOST_NAMES):
            hidden = secret or _named_secret(key) or (whole and type(key) is str and key in _VALUES)
            yield from _texts_below(below, hidden, depth - 1)
    elif type(value) in _CONTAINERS and depth:
        items = list(islice(value, _MOST_ITEMS))
        for each, hidden in zip(items, _after_names(items, type(value)), strict=True):
            yield from _texts_below(each, secret or hidden, depth - 1)


def _named_secret(key: Any) -> bool:
    return type(key) is str and len(key) <= _MOST_LETTERS and is_secret(key)


_NAMES, _VALUES = ("name", "key", "Name", "Key"), ("value", "Value")


def _is_described_secret(value: dict[Any, Any]) -> bool:
    """Return whether it is {"name": "db_password", "value": ...}, as in a pod's environment."""
    return any(_named_secret(value.get(each)) for each in _NAMES)


def _after_names(items: list[Any], kind: type) -> list[bool]:
    """Return which items are a secret's value: after a flag ("--token"), or second in a pair."""
    if kind not in (list, tuple):
        return [False] * len(items)
    is_pair = len(items) == 2 and _named_secret(items[0]) and "=" not in items[0]
    flagged = [
        type(each) is str and each[:1] == "-" and is_flag(each) and _named_secret(each)
        for each in items
    ]
    return [False, *(each or is_pair for each in flagged[:-1])][: len(items)]


# --- values -------------------------------------------------------------------------------------


class _Writer:
    """Writes values as JSON: [type, content] for types that JSON does not have."""

    def __init__(self, secrets: frozenset[str]) -> None:
        self._secrets = secrets

    def value(self, value: Any, depth: int = _DEEPEST) -> Any:
        kind = type(value)
        if value is None or kind in (bool, float):
            return value
        if kind is int:
            return value if value.bit_length() <= _MOST_BITS else ["shown", "<large int>"]
        if kind is complex:
            return ["complex", [value.real, value.imag]]
        if kind is str:
            return self._text(value)
        if kind is bytes:
            return self._bytes(value)
        if kind is dict and depth:
            return ["dict", self._pairs(value, depth - 1)]
        if kind in _CONTAINERS and depth:
            first = list(islice(value, _MOST_ITEMS))
            items = [
                HIDDEN if hidden else self.value(each, depth - 1)
                for each, hidden in zip(first, _after_names(first, kind), strict=True)
            ]
            left = len(value) - len(items)
            return [kind.__name__, [*items, *([["shown", f"… {left} more"]] if left else [])]]
        return ["shown", _described(value)]

    def _pairs(self, value: dict[Any, Any], depth: int) -> list[Any]:
        pairs: list[Any] = []
        whole = _is_described_secret(value)
        for key, below in islice(value.items(), _MOST_ITEMS):
            hidden = _named_secret(key) or (whole and type(key) is str and key in _VALUES)
            shown = HIDDEN if hidden else self.value(below, depth)
            pairs.append([self.value(key, depth), shown])
        left = len(value) - len(pairs)
        return [*pairs, *([["…", ["shown", f"… {left} more"]]] if left else [])]

    def _text(self, value: str) -> Any:
        if len(value) <= _LONGEST_SECRET:
            for secret in self._secrets:
                value = value.replace(secret, HIDDEN)
        shown = without_secrets(value[:_LONGEST_SECRET])[:_MOST_LETTERS]
        if len(value) <= _MOST_LETTERS:
            return shown
        return ["shown", f"{shown!r}… ({len(value):,} characters)"]

    def _bytes(self, value: bytes) -> Any:
        if len(value) > _MOST_LETTERS:
            return ["shown", f"<bytes, {len(value):,}>"]
        text = value.decode("utf-8", "replace")
        if self._text(text) != text:
            return HIDDEN
        return ["bytes", value.hex()]


def _described(value: Any) -> str:
    """Return the type of a value, with the shape and dtype of an array."""
    kind = type(value)
    name, module = _NAME.__get__(kind), _MODULE.__get__(kind)
    full = f"{module}.{name}" if type(module) is str and module != "builtins" else name
    known = _ARRAYS.get(name)
    if known is not None and any(_has(each, name, kind) for each in known):
        return f"<{full} {_shape_of(value, full)}>"[:_MOST_LETTERS]
    if type(module) is str and module == "numpy" and _is_number_of_numpy(kind, name):
        return f"{full}({value.item()!r})"
    size = f", {len(value)} items" if kind in (*_CONTAINERS, dict) else ""
    return f"<{full}{size}>"[:_MOST_LETTERS]


_ARRAYS = {
    "ndarray": ("numpy",),
    "Tensor": ("torch",),
    "Parameter": ("torch.nn.parameter",),
    "ArrayImpl": ("jax._src.array",),
}
"""The modules in which each class is found; a class of the user's with this name is no array."""


def _has(module: str, name: str, kind: type) -> bool:
    found: Any = sys.modules.get(module)
    return type(found) is types.ModuleType and vars(found).get(name) is kind


def _is_number_of_numpy(kind: type, name: str) -> bool:
    found: Any = sys.modules.get("numpy")
    return _has("numpy", name, kind) and found.number in kind.__mro__


def _shape_of(value: Any, full: str) -> str:
    if not full.startswith("torch"):
        return f"{tuple(value.shape)} {value.dtype}"
    # A mode of the user's (TorchFunctionMode) would be asked for the shape.
    with sys.modules["torch"]._C.DisableTorchFunction():
        return f"{tuple(value.shape)} {value.dtype} on {value.device}"
