"""TPU generations, slices and bounds: the vendor's tables, and the arithmetic behind them.

A slice is a box of chips; hosts tile it with equal boxes; with one process per device the processes
tile it too. Everything else (bounds, task ids, accelerator types) follows from those two boxes.

The PCI ids are those of jax 0.10.2 (``jax/_src/hardware_utils.py``) and of tpu_info (``device.py``
in AI-Hypercomputer/cloud-accelerator-diagnostics). tests/libtpu compares the slices with those of
libtpu 0.0.51.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from xmp._words.errors import PlanError

from .numbers import is_number

__all__ = [
    "GENERATIONS", "HOST_SHAPES", "PCI_VENDOR", "Bounds", "Generation", "Slice", "box_of",
    "generation_named", "generation_of_pci", "generation_of_type", "parse_bounds", "parse_topology",
    "slice_of", "slice_of_type",
]  # fmt: skip

PCI_VENDOR = 0x1AE0
Bounds = tuple[int, int, int]


@dataclass(frozen=True)
class Generation:
    """One TPU generation: its names, its ids, and how its chips are counted."""

    name: str
    pci: int
    label: str
    """The part of an accelerator type before the hyphen."""
    devices_per_chip: int = 1
    """Devices that a framework counts on one chip."""
    processes_per_chip: int = 1
    """Processes that can share a chip, each with its own devices."""
    number_per_chip: int = 2
    """The number that one chip adds to that of an accelerator type: v4-8 has four chips."""
    flat: bool = False
    """Whether its slices have two dimensions instead of three."""
    functions_per_chip: int = 1
    """PCI functions of one chip."""
    subsystem: int | None = None
    """The PCI subsystem id, where two generations have the same device id."""
    sizes: tuple[int, ...] = (4,)
    """Chips of one host."""


GENERATIONS = (
    Generation("v2", 0x0027, "v2", 2, flat=True, subsystem=0x004E),
    Generation("v3", 0x0027, "v3", 2, flat=True, subsystem=0x004F),
    Generation("v4", 0x005E, "v4"),
    Generation("v5p", 0x0062, "v5p"),
    Generation("v5e", 0x0063, "v5litepod", number_per_chip=1, flat=True, sizes=(1, 4, 8)),
    Generation("v6e", 0x006F, "v6e", number_per_chip=1, flat=True, sizes=(1, 4, 8)),
    Generation("7x", 0x0076, "tpu7x", 2, 2, functions_per_chip=2, sizes=(1, 2, 4)),
)
ALIASES = {"v5e": "v5litepod", "v7x": "tpu7x", "v5": "v5p"}
"""Other spellings of a label: Colab writes v5e-1, a public note v7x-16."""

HOST_SHAPES: dict[int, Bounds] = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
"""By number of chips: the box of a host, and of every part of a host that can be used alone."""


@dataclass(frozen=True)
class Slice:
    """A box of chips, tiled by hosts."""

    generation: Generation
    chips: Bounds
    per_host: Bounds

    @property
    def host_bounds(self) -> Bounds:
        """Hosts along each dimension."""
        x, y, z = (all_ // own for all_, own in zip(self.chips, self.per_host, strict=True))
        return x, y, z

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return prod(self.host_bounds)

    @property
    def process_bounds(self) -> tuple[int, ...]:
        """Processes along each dimension, one for the smallest part that a process can own."""
        each = self.generation.processes_per_chip
        return (*self.chips, each) if each > 1 else self.chips

    @property
    def devices(self) -> int:
        """Devices of the whole slice."""
        return prod(self.chips) * self.generation.devices_per_chip


def generation_of_pci(device: int, subsystem: int | None) -> Generation | None:
    """Return the generation of one of Google's PCI functions; None for an unknown id."""
    for generation in GENERATIONS:
        if generation.pci == device and generation.subsystem in (None, subsystem):
            return generation
    return None


def generation_named(name: str) -> Generation | None:
    """Return the generation called ``name`` ("v5e"); None for an unknown one."""
    return next((g for g in GENERATIONS if g.name == name), None)


def generation_of_type(text: str) -> Generation | None:
    """Return the generation of an accelerator type ("v5litepod-16"); None for an unknown one."""
    label = text.partition("-")[0]
    label = ALIASES.get(label, label)
    return next((g for g in GENERATIONS if g.label == label), None)


def parse_bounds(text: str) -> tuple[int, ...] | None:
    """Parse ``"2,2,1"`` or ``"2,2,1,2"``; return None for text on which libtpu ends the process."""
    if not re.fullmatch(r"\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*){2,3}", text):
        return None
    return tuple(int(part) for part in text.split(","))


def parse_topology(text: str) -> Bounds | None:
    """Parse ``"4x4"`` or ``"2x2x4"``; return None for anything else."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", text):
        return None
    numbers = [int(part) for part in text.split("x")]
    x, y, z = [*numbers, 1][:3]
    return x, y, z


def slice_of(generation: Generation, chips: Bounds, per_host: Bounds) -> Slice:
    """Return the slice of these boxes; raise PlanError where hosts' boxes do not tile it."""
    if any(all_ % own for all_, own in zip(chips, per_host, strict=True)):
        raise PlanError(
            f"a {generation.name} slice of {_x(chips)} chips cannot be tiled by hosts of "
            f"{_x(per_host)}. Check TPU_TOPOLOGY and TPU_CHIPS_PER_HOST_BOUNDS.",
            code="XMP-P11",
        )
    return Slice(generation, chips, per_host)


def slice_of_type(text: str, chips_on_host: int | None = None) -> Slice:
    """Return the slice of an accelerator type, with ``chips_on_host`` chips on each host if known.

    v5e-8 and v6e-8 exist as one host of eight chips and as two of four; where the chips of a host
    are not known, they are one host. Raise PlanError for an unknown generation or a number that
    makes no slice.
    """
    generation = generation_of_type(text)
    number = text.partition("-")[2]
    if generation is None or not is_number(number):
        raise PlanError(
            f"accelerator type {text!r} is not known. Known: "
            f"{', '.join(g.label for g in GENERATIONS)}, each with a number. "
            f'Use runtime="jax" with nprocs=1 (one process per host), and please report the '
            "output of `python -m xmp facts --json`.",
            code="XMP-P11",
        )
    count, rest = divmod(int(number), generation.number_per_chip)
    if rest or count < 1:
        raise PlanError(
            f"accelerator type {text!r} is not a whole number of chips. Allowed: multiples of "
            f"{generation.number_per_chip}.",
            code="XMP-P11",
        )
    most = 8 if count == 8 and 8 in generation.sizes else 4
    own = min(chips_on_host or most, count)
    if own not in HOST_SHAPES or count % own:
        raise PlanError(
            f"accelerator type {text!r} has {count} chips, which hosts of {own} chips cannot form. "
            "Check TPU_ACCELERATOR_TYPE.",
            code="XMP-P11",
        )
    return slice_of(generation, box_of(count, generation.flat), HOST_SHAPES[own])


def box_of(count: int, flat: bool) -> Bounds:
    """Return the default box of ``count`` chips: as even as powers of two allow.

    Later sides are the longer ones, apart from a third side of 1. Raise PlanError for a number that
    is not a power of two: such slices state their topology.
    """
    if count & (count - 1):
        raise PlanError(
            f"{count} chips have no default shape. Set TPU_TOPOLOGY, for example to 4x4x12.",
            code="XMP-P11",
        )
    power = count.bit_length() - 1
    if flat:
        return 1 << power // 2, 1 << (power + 1) // 2, 1
    if power < 3:  # on one host: 1x1x1, 1x2x1, 2x2x1
        return HOST_SHAPES[count]
    x, y, z = (1 << (power + i) // 3 for i in range(3))
    return x, y, z


def _x(bounds: Bounds) -> str:
    return "x".join(str(n) for n in bounds)
