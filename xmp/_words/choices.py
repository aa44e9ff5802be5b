"""The allowed values of options that take one of several words, for type checkers and editors."""

from __future__ import annotations

from typing import Literal

__all__ = ["Bind", "Op", "RuntimeName", "StartMethod"]

StartMethod = Literal["forkserver", "spawn", "fork"]
Bind = bool | Literal["cores", "numa"]
Op = Literal["sum", "mean", "min", "max", "prod"]
RuntimeName = (
    Literal[
        "cpu", "cuda", "jax", "neuron", "paddle", "pjrt", "rocm", "torch_tpu", "xpu", "xrt"
    ]
    | str
)  # fmt: skip
"""Editors offer xmp's own names; other packages may add more."""
