"""Leaves of a tree that is reduced with torch: which ones torch itself reduces, and in what form.

torch is loaded wherever these are called.
"""

from __future__ import annotations

import sys
from typing import Any

from ._reduce import is_array, is_number

__all__ = ["finish", "fits", "is_numeric"]

_REDUCED = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int32", "int64")


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, sys.modules["torch"].Tensor)


def is_numeric(leaf: Any) -> bool:
    return is_number(leaf) or is_array(leaf) or _is_tensor(leaf)


def fits(leaf: Any) -> bool:
    """Return whether gloo and nccl reduce this type themselves."""
    if is_array(leaf):
        return leaf.dtype.isnative and leaf.dtype.kind != "V" and leaf.dtype.name in _REDUCED
    return _is_tensor(leaf) and str(leaf.dtype).removeprefix("torch.") in _REDUCED


def finish(buffer: Any, leaf: Any, op: str, size: int) -> Any:
    """Return the reduced buffer in the form of ``leaf``; the mean of integers is a float."""
    if is_array(leaf):
        reduced = buffer.cpu().numpy()
        if op != "mean":
            return reduced
        kind = leaf.dtype if leaf.dtype.kind == "f" else "float64"
        # A division makes a scalar of an array without dimensions.
        return (reduced / size).astype(kind, copy=False).reshape(leaf.shape)
    if op == "mean":
        buffer = buffer / size
        buffer = buffer.to(leaf.dtype) if leaf.is_floating_point() else buffer
    return buffer.to(leaf.device)
