"""numpy arrays as memory and a description of plain values: type, shape and order."""

from __future__ import annotations

from typing import Any

from xmp._os.imports import loaded_framework

__all__ = ["array_of", "described"]

_KINDS = "biufcMmSU"


def described(value: Any) -> tuple[tuple[Any, ...], memoryview] | None:
    """Return the description and memory of a numpy array or number; None for any other value."""
    numpy = loaded_framework("numpy")
    if numpy is None:
        return None
    is_number = isinstance(value, numpy.generic)
    if type(value) is not numpy.ndarray and not (is_number and type(value) is value.dtype.type):
        return None
    name = _name(value.dtype)
    if not name:
        return None
    array: Any = numpy.asarray(value)
    order = "F" if array.flags.fnc else "C"
    flat = numpy.ascontiguousarray(array.reshape(-1, order=order))
    shape = None if is_number else tuple(array.shape)
    return (name, shape, order), memoryview(flat.view(numpy.uint8))


def array_of(description: tuple[Any, ...], memory: Any) -> Any:
    """Return the array over this writable memory, or the number.

    Raises ValueError or TypeError where the description fits no array of numbers or texts.
    """
    import numpy

    name, shape, order = description
    flat = numpy.frombuffer(memory, numpy.uint8).view(_dtype(numpy, name))
    return flat[0] if shape is None else flat.reshape(shape, order=order)


def _name(dtype: Any) -> str:
    """Return the name of a type without references, which ``_dtype`` knows; "" for other types."""
    if dtype.type.__module__ == "ml_dtypes":  # bfloat16, the floats of 8 bits
        return str(dtype.name)
    return str(dtype.str) if dtype.kind in _KINDS and dtype.itemsize else ""


def _dtype(numpy: Any, name: str) -> Any:
    if name.isidentifier():
        import ml_dtypes

        dtype = numpy.dtype(getattr(ml_dtypes, name, None))
    else:
        dtype = numpy.dtype(name)
    if _name(dtype) != name:
        raise ValueError(f"{name!r} is no type of numbers or texts")
    return dtype
