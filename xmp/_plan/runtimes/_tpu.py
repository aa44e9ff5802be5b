"""The TPU chips of a host as libtpu's variables describe them, and the slice that they belong to.

torch_xla, JAX and torch_tpu all configure libtpu by these variables. A *unit* is the smallest part
that a process can own: a chip, or on 7x one of its two cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from xmp._plan.clusters._base import tpu_environment
from xmp._plan.clusters._host_texts import host_list
from xmp._plan.topology import (
    HOST_SHAPES,
    Bounds,
    Generation,
    Slice,
    box_of,
    generation_named,
    generation_of_type,
    parse_bounds,
    parse_topology,
    slice_of,
    slice_of_type,
)
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

__all__ = [
    "INHERITED", "INPUTS", "OWNED", "Chips", "check_slice", "inherited_notes", "read_chips",
    "unit_bounds",
]  # fmt: skip

VISIBLE = "TPU_VISIBLE_CHIPS"  # "0" or "0,1,2,3"
VISIBLE_OLD = "TPU_VISIBLE_DEVICES"
BOUNDS = "TPU_PROCESS_BOUNDS"  # "2,2,1"; "2,2,1,2" on 7x
CHIP_BOUNDS = "TPU_CHIPS_PER_PROCESS_BOUNDS"  # "1,1,1"
HOST_BOUNDS = "TPU_HOST_BOUNDS"
HOST_CHIPS = "TPU_CHIPS_PER_HOST_BOUNDS"
TOPOLOGY = "TPU_TOPOLOGY"  # "4x4"
TYPE = "TPU_ACCELERATOR_TYPE"  # "v5litepod-16"
ADDRESSES = "TPU_PROCESS_ADDRESSES"  # "10.0.0.2:8476,10.0.0.2:8477"
ADDRESSES_PATH = "TPU_PROCESS_ADDRESSES_PATH"  # a file with the same text
PORT = "TPU_PROCESS_PORT"
TASK = "CLOUD_TPU_TASK_ID"
WORKER = "TPU_WORKER_ID"
NAMES = "TPU_WORKER_HOSTNAMES"

INHERITED = (
    (VISIBLE, "a mask: replicas get chips from it; a chip that does not exist is refused"),
    (VISIBLE_OLD, "the same, where the first is unset or empty"),
    ("TPU_VISIBLE_DEVICE_PATHS", "dropped: it overrides the mask of every replica"),
    (BOUNDS, f"with {CHIP_BOUNDS} the slice, where no host bounds are given; else replaced"),
    (CHIP_BOUNDS, "as above; torch_xla leaves those of a single chip behind"),
    (HOST_BOUNDS, f"with {HOST_CHIPS} the slice"),
    (HOST_CHIPS, "as above"),
    ("HOST_BOUNDS", "dropped: libtpu reads it where TPU_HOST_BOUNDS is unset"),
    ("CHIPS_PER_HOST_BOUNDS", f"dropped: libtpu reads it where {HOST_CHIPS} is unset"),
    (ADDRESSES, "kept, and its ports held, where it has one entry per process; else dropped"),
    (ADDRESSES_PATH, "dropped: libtpu (0.0.49) and JAX (0.12) read it before the variable"),
    ("CLOUD_TPU_SLICE_BUILDER_WORKER_IPS", "dropped: libtpu 0.0.52 has the name, and no use of it"),
    (PORT, "replaced: it belongs to another process"),
    (TASK, "replaced: it belongs to another process"),
    (WORKER, "the position of this host in the list of workers; then replaced per process"),
    (NAMES, "the hosts of the slice, where it is a list; kept for torch_xla on several hosts only"),
    ("TPU_WORKER_ADDRS", "dropped: libtpu reads the names"),
    ("TPU_MESH_CONTROLLER_ADDRESS", "dropped: libtpu 0.0.51 does not read it, old recipes set it"),
    ("TPU_MESH_CONTROLLER_PORT", "dropped: as above"),
)
"""The variables that identify a process to libtpu, and what xmp does with an inherited value.

Measured with libtpu 0.0.51 and 0.0.52, which log the flags that they derive from the environment.
A plan has a note for each value that is dropped although it was meant to say something.
"""
OWNED = tuple(name for name, _ in INHERITED)

INPUTS = (
    *(TOPOLOGY, TYPE, "TPU_SKIP_MDS_QUERY", "TPU_RUNTIME_METRICS_PORTS", "TPU_LOG_DIR"),
    *("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS"),
    *("LIBTPU_INIT_ARGS", "XLA_FLAGS"),
)
"""Variables that are read and kept: the platform's or the user's own choices."""


@dataclass(frozen=True)
class Chips:
    """The chips of one host, and the slice that they are a part of."""

    generation: Generation
    visible: tuple[str, ...]
    """The units that the host's mask allows, as libtpu numbers them."""
    slice: Slice

    @property
    def total(self) -> int:
        """All units of one host."""
        return prod(self.slice.per_host) * self.generation.processes_per_chip

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of units that can be used alone on one host: those that form a box."""
        each = self.generation.processes_per_chip
        sizes = {1, *(chips * each for chips in HOST_SHAPES)}
        return tuple(sorted(n for n in sizes if n <= len(self.visible)))


def read_chips(facts: HostFacts) -> Chips:
    """Return this host's chips; raise PlanError for unknown ones or contradictory settings."""
    env = tpu_environment(facts)
    generation = _generation(facts, env)
    count = _count(facts, env, generation)
    alone = facts.env.get("NNODES") == "1" or "XMP_DEVICE" in facts.env
    units = count * generation.processes_per_chip
    visible = _visible(facts, units)
    if len(visible) < units or alone:
        return Chips(generation, visible, _alone(generation, count))
    return Chips(generation, visible, _slice(facts, env, generation, count))


def _generation(facts: HostFacts, env: Mapping[str, str]) -> Generation:
    named = generation_named(facts.tpu.get("generation", ""))
    text = env.get(TYPE) or env.get("ACCELERATOR_TYPE") or facts.metadata.get("accelerator-type")
    generation = named or (generation_of_type(text) if text else None)
    if generation is None:
        what = facts.tpu.get("unknown") or text
        raise PlanError(
            (f"the TPU chip {what!r} is not known" if what else "this host has no TPU chip")
            + '. Use runtime="jax" with nprocs=1 (one process per host)'
            + (", and please report the output of `python -m xmp facts --json`." if what else "")
            + ("" if what else ' on a TPU host, or runtime="cpu" here.'),
            code="XMP-P11",
        )
    return generation


def _count(facts: HostFacts, env: Mapping[str, str], generation: Generation) -> int:
    """Return the chips of this host: as the kernel shows them, but at most those of the type.

    The kernel may show functions, of which a chip may have several. Raise PlanError for a number
    that is not known to work.
    """
    count = int(facts.tpu.get("chips") or 0)
    text = env.get(TYPE) or env.get("ACCELERATOR_TYPE") or ""
    if generation_of_type(text) is generation:
        whole = prod(slice_of_type(text, count or None).chips)
        count = min(count or 4, whole)
    if count not in HOST_SHAPES:
        raise PlanError(
            f"{count} {generation.name} chips on one host are not known to work. Known: "
            f"{', '.join(map(str, generation.sizes))}. Please report the output of `python -m xmp "
            "facts --json`.",
            code="XMP-P11",
        )
    return count


def _visible(facts: HostFacts, units: int) -> tuple[str, ...]:
    """Return the units that an inherited mask leaves, in order; an empty mask counts as unset."""
    everything = tuple(str(unit) for unit in range(units))
    mask = facts.env.get(VISIBLE) or facts.env.get(VISIBLE_OLD) or ""
    entries = tuple(part.strip() for part in mask.split(",") if part.strip())
    if not entries:
        return everything
    if len(set(entries)) < len(entries) or not set(entries) <= set(everything):
        raise PlanError(
            f"{VISIBLE}={mask!r} does not name chips of this host. Allowed: each of 0 to "
            f"{units - 1} once, or unset.",
            code="XMP-P07",
        )
    return entries


def _alone(generation: Generation, count: int) -> Slice:
    return slice_of(generation, HOST_SHAPES[count], HOST_SHAPES[count])


def _slice(facts: HostFacts, env: Mapping[str, str], generation: Generation, count: int) -> Slice:
    """Return the slice: from bounds, else the topology, the type, the list of hosts, this host."""
    own = HOST_SHAPES[count]
    box = _box_of_bounds(facts.env) or _box_of_bounds(env)
    if box is None and env.get(TOPOLOGY):
        box = parse_topology(env[TOPOLOGY])
    text = env.get(TYPE) or env.get("ACCELERATOR_TYPE") or facts.metadata.get("accelerator-type")
    if box is None and text and generation_of_type(text) is generation:
        return slice_of_type(text, count)
    names = host_list(facts.env.get(NAMES, "")) or ()
    if box is None and len(names) > 1:
        box = box_of(len(names) * count, generation.flat)
    if box is None or prod(box) < count:
        # torch_xla 2.9 sets bounds of one chip where it runs as a single process.
        return _alone(generation, count)
    return slice_of(generation, box, own)


def _box_of_bounds(env: Mapping[str, str]) -> Bounds | None:
    """Return the chips along each dimension: processes (or hosts) times the chips of each."""
    for outer, inner in ((HOST_BOUNDS, HOST_CHIPS), (BOUNDS, CHIP_BOUNDS)):
        if not env.get(outer) or not env.get(inner):
            continue
        first, second = parse_bounds(env[outer]), parse_bounds(env[inner])
        if first is None or second is None:
            raise PlanError(
                f"{outer}={env[outer]!r} and {inner}={env[inner]!r}: libtpu would end the process "
                'on malformed bounds. Allowed: three numbers, as in "2,2,1", or unset.',
                code="XMP-P07",
            )
        x, y, z = (a * b for a, b in zip(first[:3], second[:3], strict=True))
        return x, y, z
    return None


def unit_bounds(generation: Generation, units: int) -> tuple[int, ...]:
    """Return the process bounds of ``units`` processes on one host, each with one unit."""
    each = generation.processes_per_chip
    if each == 1:
        return HOST_SHAPES[units]
    return (*HOST_SHAPES[max(units // each, 1)], min(units, each))


def check_slice(chips: Chips, hosts: int) -> int:
    """Return how many slices ``hosts`` hosts are; raise PlanError for a fraction of a slice."""
    size = chips.slice.hosts
    if hosts % size == 0:
        return hosts // size
    shape = "x".join(map(str, chips.slice.chips))
    raise PlanError(
        f"the slice of {shape} {chips.generation.name} chips has {size} hosts, but {hosts} of them "
        f"are known. Set {NAMES} and {WORKER} on every host and start xmp on all of them, or "
        "set NNODES=1 to use this host alone.",
        code="XMP-P11",
    )


def inherited_notes(facts: HostFacts, processes: int, alone: bool) -> tuple[str, ...]:
    """Return one note for each inherited value that does not fit ``processes`` processes."""
    notes = []
    given = facts.env.get(ADDRESSES)
    if given and len(given.split(",")) != processes:
        notes.append(f"{ADDRESSES}: {_many(given)} for {processes} replicas")
    if facts.env.get(ADDRESSES_PATH):
        notes.append(f"{ADDRESSES_PATH}: the file is another launch's")
    for name in (NAMES, "TPU_WORKER_ADDRS"):
        if facts.env.get(name) and host_list(facts.env[name]) is None:
            notes.append(f"{name}: it is not a list of hosts")
    if alone:
        names = sorted(n for n in facts.env if n.startswith("MEGASCALE_"))
        notes += [f"{name}: there is one slice" for name in names]
    return tuple(f"dropped {note} (inherited)" for note in notes)


def _many(text: str) -> str:
    count = len(text.split(","))
    return f"{count} address" + ("es" if count > 1 else "")
