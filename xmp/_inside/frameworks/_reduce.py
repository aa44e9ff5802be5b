"""The five reductions, over values that have been gathered: one from each replica.

Numbers are reduced here because a replica may hold an ``int`` where another holds a ``float``, and
Python's integers have no largest value; arrays are, if the collective library does not know their
type. Values are folded in rank order, so every replica gets the same bits.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

from xmp._os.imports import loaded_framework

__all__ = ["finish", "fits", "fold", "is_array", "is_number", "is_numeric"]

_Fold = Callable[[Any, Any], Any]


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a Python or numpy number; a bool counts as 0 or 1."""
    if isinstance(value, (int, float, complex)):
        return True
    numpy = loaded_framework("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and _numeric(value.dtype)


def is_array(value: Any) -> bool:
    """Return whether ``value`` is a numpy array of numbers."""
    numpy = loaded_framework("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and _numeric(value.dtype)


def fold(values: Sequence[Any], op: str) -> Any:
    """Reduce numbers, numpy arrays or tensors of one shape; the mean of integers is a float."""
    add, multiply, least, greatest = _operations(values[0])
    if op in ("min", "max"):
        return functools.reduce(least if op == "min" else greatest, values)
    counted = [_countable(value) for value in values]
    if op == "prod":
        return functools.reduce(multiply, counted)
    total = functools.reduce(add, counted)
    return total / len(values) if op == "mean" else total


def _numeric(dtype: Any) -> bool:
    # Kind V has records, but also bfloat16 and the 8-bit floats of ml_dtypes, which are numbers.
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type.__module__ == "ml_dtypes")


def _operations(sample: Any) -> tuple[_Fold, _Fold, _Fold, _Fold]:
    if is_array(sample):
        import numpy

        return numpy.add, numpy.multiply, numpy.minimum, numpy.maximum
    if is_number(sample):
        return operator.add, operator.mul, _smaller, _larger
    torch = sys.modules["torch"]
    return torch.add, torch.mul, torch.minimum, torch.maximum


def _countable(value: Any) -> Any:
    """Return booleans as integers, since numpy and torch add them as ``or``; others unchanged."""
    if str(getattr(value, "dtype", "")) == "bool":
        return value.astype("int64")
    if str(getattr(value, "dtype", "")) == "torch.bool":
        return value.long()
    return value


def _smaller(a: Any, b: Any) -> Any:
    return a if a != a or a < b else b  # "not a number" wins, as in arrays


def _larger(a: Any, b: Any) -> Any:
    return a if a != a or a > b else b


# --- what torch itself reduces, and in what form; torch is loaded wherever these are called ------


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
