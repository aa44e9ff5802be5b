"""Which variables imports have written into this process's environment since its first template.

``import sklearn`` sets KMP_DUPLICATE_LIB_OK, which an OpenMP runtime reads when it is loaded. A
template whose modules came before, as they did here, needs no other value of it; a user who sets
the variable means all replicas. Nothing else tells the two apart: a fork that imported the same
modules once more, as a trial, would take as long as they take.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from xmp._processes.system import variables_read

__all__ = ["note", "of_imports"]

_environ: Any = os.environ
_written: dict[str, str] = {}
"""Name and value of what the body of an installed module wrote last."""
_encode: Any = None
"""How ``os.environ`` encodes values, while writes are noted."""


def note() -> None:
    """Note who writes from now on: ``os.environ`` encodes each value that it is given."""
    global _encode
    if _encode is None:
        _encode, _environ.encodevalue = _environ.encodevalue, _encoded


def of_imports() -> dict[str, str]:
    """Return the variables that still have the value that an import of a library gave them."""
    return {name: value for name, value in _written.items() if os.environ.get(name) == value}


def _encoded(value: Any) -> Any:
    frame: FrameType | None = sys._getframe(1)
    name = frame.f_locals.get("key") if frame is not None else None
    if isinstance(name, bytes) and isinstance(value, str):
        _note(os.fsdecode(name), value, frame)
    return _encode(value)


def _note(name: str, value: str, writer: FrameType | None) -> None:
    file = variables_read.innermost(writer)
    if file and variables_read.is_of_a_library(file):
        _written[name] = value
    else:
        _written.pop(name, None)
