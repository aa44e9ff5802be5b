"""How tensors of Paddle travel between replicas: the rule, without Paddle."""

from __future__ import annotations

import numpy
import pytest

from xmp.plugins.paddle._wire import in_numpy


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float64", "float64"),
        ("float32", "float32"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float8_e4m3fn", "float32"),
        ("float8_e5m2", "float32"),
        ("complex64", "complex64"),
        ("complex128", "complex128"),
        ("int64", "int64"),
        ("uint8", "uint8"),
        ("bool", "bool"),
    ],
)
def test_numpy_holds_every_value_of_a_dtype(dtype: str, expected: str) -> None:
    assert in_numpy(dtype) == expected
    assert numpy.dtype(expected).itemsize > 0
