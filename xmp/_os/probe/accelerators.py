"""Accelerators as the kernel shows them: PCI functions and device nodes, without opening any."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from xmp._os import proc
from xmp._plan.topology import PCI_VENDOR, Generation, generation_of_pci

__all__ = ["hardware"]

INTEL = 0x8086
DISPLAY_CLASSES = (0x030000, 0x038000)
OTHER_CLASSES = (0x01, 0x02, 0x03, 0x05, 0x06, 0x0C)
"""Storage, network, display, memory, bridges, buses, by the first byte of the PCI class."""
INTEGRATED = "0000:00:02.0"
"""The PCI address of the graphics in Intel's processors."""


@functools.lru_cache(maxsize=8)
def hardware(root: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the TPU chips and the GPUs of the host, as the ``tpu`` and ``gpus`` of its facts."""
    functions = sorted(Path(root, "sys/bus/pci/devices").glob("*"))
    return _tpu(Path(root), functions), _gpus(Path(root), functions)


def _tpu(root: Path, functions: list[Path]) -> dict[str, Any]:
    google = [f for f in functions if _hexadecimal(f / "vendor") == PCI_VENDOR]
    chips: dict[str, Any] = {}
    for function in google:
        device = _hexadecimal(function / "device")
        subsystem = _hexadecimal(function / "subsystem_device")
        generation = generation_of_pci(device, subsystem)
        if generation is not None:
            same = [f for f in google if _hexadecimal(f / "device") == device]
            return _chips(root, generation, [f.name for f in same])
        if _accelerator(function):
            chips = {"unknown": f"{device:#06x}"}
    return chips


def _accelerator(function: Path) -> bool:
    """Return whether a PCI function of Google's is an accelerator, not a network card or a disk."""
    return _hexadecimal(function / "class") >> 16 not in OTHER_CLASSES


def _chips(root: Path, generation: Generation, slots: list[str]) -> dict[str, Any]:
    """Count the chips behind the PCI functions ``slots``; a container may own only some of them."""
    accel = len(list(Path(root, "dev").glob("accel[0-9]*")))
    vfio = len(list(Path(root, "dev/vfio").glob("[0-9]*")))
    owned = accel or vfio or len(slots)
    count = min(len(slots), owned)
    if generation.functions_per_chip > 1 and not _one_function_each(generation, slots):
        count = max(count // generation.functions_per_chip, 1)
    found = {
        "generation": generation.name,
        "chips": count,
        "devices": count * generation.devices_per_chip,
    }
    if accel or vfio:
        found["nodes"] = "accel" if accel else "vfio"
    return found


def _one_function_each(generation: Generation, slots: list[str]) -> bool:
    """Return whether each chip shows one function, as on some 7x hosts.

    Then all functions are ``.0``, and there are no more than chips fit.
    """
    return all(slot.endswith(".0") for slot in slots) and len(slots) <= max(generation.sizes)


def _gpus(root: Path, functions: list[Path]) -> dict[str, Any]:
    # A container has only its own device nodes; /proc/driver shows those of the whole host.
    nvidia = [n for n in Path(root, "dev").glob("nvidia[0-9]*") if n.name[6:].isdigit()]
    if nvidia:
        return {"vendor": "nvidia", "count": len(nvidia)}
    nodes = Path(root, "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    amd = [node for node in nodes if proc.text(node) not in ("", "0")]
    if amd:
        return {"vendor": "amd", "count": len(amd)}
    intel = [f for f in functions if _intel_gpu(f)]
    if intel and list(Path(root, "dev/dri").glob("renderD*")):
        return {"vendor": "intel", "count": len(intel)}
    if Path(root, "dev/dxg").exists():  # WSL shows all GPUs behind one node
        return {"vendor": "nvidia", "count": 1}
    return {}


def _intel_gpu(function: Path) -> bool:
    return (
        _hexadecimal(function / "vendor") == INTEL
        and _hexadecimal(function / "class") in DISPLAY_CLASSES
        and function.name != INTEGRATED
    )


def _hexadecimal(path: Path) -> int:
    """Return the file's hexadecimal number; -1 where there is none."""
    found = proc.text(path)
    return int(found, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]+", found) else -1
