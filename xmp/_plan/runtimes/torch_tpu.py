"""torch_tpu: a native torch device; the library derives libtpu's variables from a few of its own.

The plan sets what the library's ``set_tpu_launch_env`` sets in a launcher (torch_tpu 0.2,
``_internal/distributed/distributed.py``), but with ports that xmp holds.
"""

from __future__ import annotations

from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, PortNeed, Request

from . import _libtpu
from ._base import Fit, Job, Place, Runtime, Share, many
from ._tpu import INPUTS, OWNED, VISIBLE_OLD, inherited_notes, read_chips, unit_bounds

__all__ = ["TorchTpuRuntime"]

ADDRESSES = "TORCH_TPU_SLICEBUILDER_ADDRESSES"  # "localhost:40001,localhost:40002"
TOPOLOGY = "TORCH_TPU_TOPOLOGY"  # "2,2,1"; "2,2,1,2" on 7x; commas only: libtpu ends on "2x2x1"
SESSION = "TORCH_TPU_XPROF_SESSION_ID"
BASE_PORT = "TORCH_TPU_BASE_PORT"  # "8070"
FIRST_PORT = 8070
COUNTS = {"v4": (1, 2, 4), "v5p": (1, 2, 4), "v5e": (1, 4, 8), "v6e": (1, 4, 8), "7x": (1, 2, 4, 8)}
"""Devices on one host that the library has a topology for."""


class TorchTpuRuntime(Runtime):
    """One process per device, ``tpu_dist`` by default."""

    name = "torch_tpu"
    framework = "xmp._inside.frameworks.torch_tpu"
    family = "torch_tpu"
    package = "torch_tpu"
    store = True
    default_backend = "tpu_dist"
    backends = ("tpu_dist", "tpu", "gloo")
    owned = (*OWNED, ADDRESSES, TOPOLOGY, SESSION)

    inputs = (*INPUTS, BASE_PORT)

    def configured(self, facts: HostFacts) -> str:
        named = [name for name in (TOPOLOGY, ADDRESSES) if facts.env.get(name)]
        if not named or not facts.frameworks.get("torch_tpu") or not facts.tpu:
            return ""
        return f"{named[0]}={facts.env[named[0]]}"

    def possible(self, facts: HostFacts) -> str:
        name = facts.tpu.get("generation", "")
        if name not in COUNTS or facts.tpu.get("nodes") == "accel":
            return ""
        version = facts.frameworks.get("torch_tpu")
        return f"{facts.tpu.get('chips')} {name} chips and torch_tpu {version}" if version else ""

    def on_tpu(self, facts: HostFacts) -> bool:
        return True

    def visible(self, facts: HostFacts) -> tuple[str, ...]:
        return read_chips(facts).visible

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        chips = read_chips(facts)
        name = chips.generation.name
        if name not in COUNTS:
            raise PlanError(
                f"torch_tpu does not know {name} chips. Known: {', '.join(COUNTS)}. Use "
                'runtime="pjrt" with torch_xla, or runtime="jax".',
                code="XMP-P06",
            )
        if facts.tpu.get("nodes") == "accel":
            raise PlanError(
                "torch_tpu finds no chips on this host: it looks in /dev/vfio, the chips are "
                '/dev/accel*. Use runtime="pjrt" or runtime="jax".',
                code="XMP-P06",
            )
        units = len(chips.visible)
        if hosts > 1:
            return Fit(units, (units,), f"{many(units, name + ' device')} on each of {hosts} hosts")
        allowed = tuple(n for n in COUNTS[name] if n <= units)
        return Fit(
            allowed[-1], allowed, many(units, f"{name} device"), 'runtime="cpu" takes any number.'
        )

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        self._prepare(job)
        own = [_need(job, p.index, i) for p in job.places for i in range(job.local)]
        return (*own, *_libtpu.metrics_needs(job, job.local))

    def share(self, job: Job, place: Place, local: int) -> Share:
        self._prepare(job)
        chips = job.memo["chips"]
        whole = job.hosts > 1
        bounds = chips.slice.process_bounds if whole else unit_bounds(chips.generation, job.local)
        unit = _libtpu.chosen_units(job, place, chips.visible, job.local)[local]
        given = {
            ADDRESSES: self._addresses(job),
            TOPOLOGY: ",".join(str(n) for n in bounds),
            # The library needs a number that is the same on all ranks.
            SESSION: str(job.port(_need(job, 0, 0))),
            # The library keeps a single name, but not a list, and claims that chip.
            VISIBLE_OLD: unit,
            **_libtpu.private(job, place, job.port(_need(job, place.index, 0))),
        }
        return Share(given, f"tpu:{local}", {"device_type": "tpu"})

    def endpoints(self, job: Job, place: Place) -> str:
        return self._addresses(job)

    def notes(self, job: Job) -> tuple[str, ...]:
        return inherited_notes(job.places[0].facts, job.world, True)

    def _prepare(self, job: Job) -> None:
        if _libtpu.prepare(job, read_chips(job.places[0].facts), job.local) > 1:
            raise PlanError(
                'torch_tpu cannot span several slices (MEGASCALE_*). Use runtime="jax", or set '
                "NNODES=1 to use this host alone.",
                code="XMP-P06",
            )

    def _addresses(self, job: Job) -> str:
        pairs = ((host, i) for host in range(job.hosts) for i in range(job.local))
        return job.once(ADDRESSES, lambda: ",".join(_entry(job, host, i) for host, i in pairs))


def _entry(job: Job, host: int, local: int) -> str:
    name = "localhost" if job.hosts == 1 else job.addresses[host]
    if ":" in name or not name:
        raise PlanError(
            f"the address of host {host} is {name or 'unknown'!r}: torch_tpu takes names and IPv4 "
            "addresses only. Set TPU_WORKER_HOSTNAMES to such names.",
            code="XMP-H04",
        )
    return f"{name}:{job.port(_need(job, host, local))}"


def _need(job: Job, host: int, local: int) -> PortNeed:
    base = job.places[0].facts.env.get(BASE_PORT, "")
    documented = (int(base) if is_number(base) else FIRST_PORT) + local
    fixed = 0 if job.leasable else documented
    return PortNeed(f"process.{host}.{local}", "hold", _libtpu.ANY, fixed, documented, host)
