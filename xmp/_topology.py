"""TPU generations, slices and bounds: what the vendor's tables say, as tables and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GENERATIONS", "PCI_VENDOR", "Generation", "generation_of_pci"]

PCI_VENDOR = 0x1AE0


@dataclass(frozen=True)
class Generation:
    """One TPU generation as a host shows it."""

    name: str
    pci: int
    devices_per_chip: int
    """Devices that a framework counts on one chip."""
    functions_per_chip: int = 1
    """PCI functions of one chip."""
    subsystem: int | None = None
    """The PCI subsystem id, where it takes that to tell two generations apart."""


GENERATIONS = (
    Generation("v2", 0x0027, 2, subsystem=0x004E),
    Generation("v3", 0x0027, 2, subsystem=0x004F),
    Generation("v4", 0x005E, 1),
    Generation("v5p", 0x0062, 1),
    Generation("v5e", 0x0063, 1),
    Generation("v6e", 0x006F, 1),
    Generation("7x", 0x0076, 2, functions_per_chip=2),
)


def generation_of_pci(device: int, subsystem: int | None) -> Generation | None:
    """The generation of a PCI function of Google's; None for an unknown id."""
    for generation in GENERATIONS:
        if generation.pci == device and generation.subsystem in (None, subsystem):
            return generation
    return None
