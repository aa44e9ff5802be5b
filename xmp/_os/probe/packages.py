"""Finds the frameworks that are installed, loaded and initialised, without importing one."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xmp._os import proc
from xmp._os.imports import is_the_programs_own

from .holders import open_among

__all__ = ["foreign_owners", "initialised", "installed", "loaded"]

OURS = "xmp-spawn"
"""This project's distribution; ``xmp`` on the package index is another one."""

PACKAGES = {
    "torch": ("torch",),
    "torch_xla": ("torch_xla",),
    "torch_tpu": ("torch_tpu",),
    "jax": ("jax",),
    "jaxlib": ("jaxlib",),
    "libtpu": ("libtpu", "libtpu-nightly"),
    "jax_cuda_plugin": ("jax-cuda13-plugin", "jax-cuda12-plugin"),
    "jax_rocm_plugin": ("jax-rocm7-plugin", "jax-rocm60-plugin"),
    "libneuronxla": ("libneuronxla",),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu"),
}
"""The distributions that install each package, by import name."""

LOADED = (
    "torch",
    "torch.distributed",
    "torch_xla",
    "torch_tpu",
    "torch_neuronx",
    "numpy",
    "numpy.random",
    "jax",
    "jax.numpy",
    "jaxlib",
    "paddle",
)
"""Modules whose presence in this process matters to a plan."""


def loaded() -> tuple[str, ...]:
    """Return the frameworks that this process has imported, without the user's modules so named."""
    names = [name for name in LOADED if name in sys.modules]
    own = {root for root in names if "." not in root and is_the_programs_own(root)}
    return tuple(name for name in names if name.partition(".")[0] not in own)


def installed() -> dict[str, str | None]:
    """Return versions by package; look them up again when a folder on ``sys.path`` has changed."""
    path = tuple(sys.path)
    return dict(_versions(path, tuple(_modified(entry) for entry in path)))


@functools.lru_cache(maxsize=4)
def _versions(path: tuple[str, ...], modified: tuple[int, ...]) -> Mapping[str, str | None]:
    found = _distributions(path)
    return {name: _version(name, distributions, found) for name, distributions in PACKAGES.items()}


def _distributions(path: tuple[str, ...]) -> dict[str, str]:
    """Return versions by distribution, as the folders with their metadata are named.

    importlib.metadata reads them inside, with the parser of emails: a tenth of a first launch. The
    name is enough (packaging.python.org, "Recording installed projects"); it has no version where
    ``setup.py develop`` has written it.
    """
    found: dict[str, str] = {}
    for entry in path:
        try:
            folders = os.listdir(entry or ".")
        except OSError:
            continue
        for folder in folders:
            stem, _, kind = folder.rpartition(".")
            if kind in ("dist-info", "egg-info"):
                name, _, version = stem.partition("-")
                found.setdefault(name.lower().replace("_", "-"), version.partition("-")[0])
    return found


def foreign_owners() -> list[str]:
    """Return other projects' distributions that are named ``xmp`` or have files in that package."""
    import importlib.metadata

    found = set()
    for each in importlib.metadata.distributions():
        if "Name" not in each.metadata:  # a broken or half-removed installation
            continue
        name = each.metadata["Name"].lower().replace("_", "-")
        # top_level.txt is optional, and the project called xmp has none: RECORD lists its files.
        record = each.read_text("RECORD") or ""
        if name == "xmp" or (name != OURS and re.search(r"^xmp(/|\.py,)", record, re.MULTILINE)):
            found.add(f"{name} {each.version}")
    return sorted(found)


def _modified(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _version(name: str, distributions: tuple[str, ...], found: Mapping[str, str]) -> str | None:
    for distribution in distributions:
        version = found.get(distribution.replace("_", "-"))
        if version == "":
            import importlib.metadata

            version = importlib.metadata.version(distribution)
        if version is not None:
            return _torch_build(version) if name == "torch" else version
    return None


def _torch_build(version: str) -> str:
    """Return torch's version with its build ("+cpu", "+cu128"), which an index's wheels lack."""
    spec = importlib.util.find_spec("torch")
    if "+" in version or spec is None or not spec.submodule_search_locations:
        return version
    text = proc.text(Path(next(iter(spec.submodule_search_locations)), "version.py"))
    for name, label in (("cuda", "cu"), ("hip", "rocm"), ("xpu", "xpu")):
        found = re.search(rf"^{name}\b[^=]*= '([^']+)'", text, re.MULTILINE)
        if found:
            return f"{version}+{label}{found[1]}"
    return f"{version}+cpu" if text else version


# --- initialised ---------------------------------------------------------------------------------


def initialised(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return ``"jax:tpu"``, ``"torch:cuda"``, …: framework and device, in a fixed order.

    ``patterns`` are the device files of TPU chips, none where there are no chips; an open one that
    no framework accounts for is listed as well. The functions called are those of jax 0.10, torch
    2.13, torch_xla 2.9 and torch_tpu 0.2; a version without them counts as not initialised.
    """
    found = [
        f"{name}:{device}" for name, ask in _FRAMEWORKS.items() for device in _answers(name, ask)
    ]
    held = patterns and open_among(Path("/proc/self"), patterns)
    if held and not any(entry.endswith(":tpu") for entry in found):
        found.append("another library:tpu")
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
