"""Finds the device runtimes that this process has initialised, without initialising any."""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .holders import open_files

__all__ = ["initialised"]

UNKNOWN = "another library"


def initialised(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return ``"jax:tpu"``, ``"torch:cuda"``, …: framework and device, in a fixed order.

    ``patterns`` are the device files of TPU chips, none where there are no chips; an open one that
    no framework accounts for is listed as well. The functions called are those of jax 0.10, torch
    2.13, torch_xla 2.9 and torch_tpu 0.2; a version without them counts as not initialised.
    """
    found = [
        f"{name}:{device}" for name, ask in _FRAMEWORKS.items() for device in _answers(name, ask)
    ]
    if not any(entry.endswith(":tpu") for entry in found) and _holds(patterns):
        found.append(f"{UNKNOWN}:tpu")
    return tuple(found)


def _answers(module: str, ask: Callable[[Any], Iterator[str]]) -> list[str]:
    loaded = sys.modules.get(module)
    try:
        return [] if loaded is None else list(ask(loaded))
    except (AttributeError, KeyError):  # of another version, or still being imported
        return []


def _jax(jax: Any) -> Iterator[str]:
    bridge = sys.modules["jax._src.xla_bridge"]
    if bridge.backends_are_initialized():
        yield from sorted(bridge._backends)


def _torch(torch: Any) -> Iterator[str]:
    if torch.cuda.is_initialized():
        yield "rocm" if torch.version.hip else "cuda"
    if torch.xpu.is_initialized():
        yield "xpu"


def _torch_xla(torch_xla: Any) -> Iterator[str]:
    if torch_xla._XLAC._xla_runtime_is_initialized():
        yield os.environ.get("PJRT_DEVICE", "cpu").partition("_")[0].lower()


def _torch_tpu(torch_tpu: Any) -> Iterator[str]:
    backend: Any = sys.modules["torch_tpu._internal.device._device_ops_backend"]
    if backend._is_initialized():
        yield "tpu"


_FRAMEWORKS: dict[str, Callable[[Any], Iterator[str]]] = {
    "jax": _jax,
    "torch": _torch,
    "torch_xla": _torch_xla,
    "torch_tpu": _torch_tpu,
}


def _holds(patterns: Sequence[str]) -> bool:
    if not patterns:
        return False
    files = open_files(Path("/proc/self"))
    return any(fnmatch.fnmatchcase(path, each) for path in files for each in patterns)
