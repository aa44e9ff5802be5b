"""AWS Neuron under torch_xla: one core per replica; a core belongs to one process until it ends.

The variables are those of torch_xla 2.9.0 (``torch_xla/_internal/neuron.py``) and of the Neuron
runtime.
"""

from __future__ import annotations

import re

from xmp._plan.numbers import is_number
from xmp._plan.runtimes._base import SPMD, Fit, Job, Place, Runtime, Share, is_spmd
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, PortNeed, Request

__all__ = ["Neuron"]

DEVICE = "PJRT_DEVICE"
COUNT = "NEURONCORE_NUM_DEVICES"  # "2": processes of a launch
CORES = "NEURON_RT_VISIBLE_CORES"  # "4", "0-3", "0-1,4"
ROOT = "NEURON_RT_ROOT_COMM_ID"  # "10.0.0.2:62182", "[fd00::1]:62182"
DEVICES = "NEURON_PJRT_PROCESSES_NUM_DEVICES"  # "1,1"
INDEX = "NEURON_PJRT_PROCESS_INDEX"
ROOT_PORT = 62182


class Neuron(Runtime):
    """One replica per core of the mask; without a mask, as many as NEURONCORE_NUM_DEVICES."""

    name = "neuron"
    framework = "xmp._inside.frameworks.torch_xla"
    family = "torch_neuronx"
    package = "torch_xla"
    store = True
    default_backend = "xla"
    backends = ("xla", "gloo")
    owned = (
        *(DEVICE, CORES, ROOT, DEVICES, INDEX),
        *("NEURON_PJRT_WORLD_SIZE", "PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT"),
    )

    inputs = (COUNT, SPMD)

    def configured(self, facts: HostFacts) -> str:
        text = facts.env.get(DEVICE, "")
        return f"{DEVICE}={text}" if text.partition("_")[0].upper() == "NEURON" else ""

    def possible(self, facts: HostFacts) -> str:
        version = facts.frameworks.get("libneuronxla")
        return f"libneuronxla {version}" if version else ""

    def visible(self, facts: HostFacts) -> tuple[str, ...]:
        text = facts.env.get(CORES)
        if text:
            return _cores(text)
        count = facts.env.get(COUNT, "1")
        if not is_number(count) or int(count) < 1:
            raise PlanError(
                f"{COUNT}={count!r} is not a number of cores. Allowed: 1 or more.", code="XMP-P07"
            )
        return tuple(str(core) for core in range(int(count)))

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        if is_spmd(facts):
            raise PlanError(
                f"{SPMD}={facts.env[SPMD]}: one process owns all Neuron cores of a host then, but "
                f"xmp gives each replica one. Unset {SPMD}, or start the program without xmp.",
                code="XMP-P07",
            )
        cores = len(self.visible(facts))
        allowed = tuple(range(1, cores + 1)) if hosts == 1 else (cores,)
        return Fit(cores, allowed, f"{cores} Neuron cores", f"Set {CORES} or {COUNT} for more.")

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        return (_need(job),) if job.places[0].index == 0 else ()

    def share(self, job: Job, place: Place, local: int) -> Share:
        root = f"[{job.coordinator}]" if ":" in job.coordinator else job.coordinator
        core = self.chosen(job, place)[local]
        given = {
            DEVICE: "NEURON",
            CORES: core,
            ROOT: f"{root}:{job.port(_need(job))}",
            DEVICES: ",".join("1" for _ in range(job.world)),
            INDEX: str(place.index * job.local + local),
            "PJRT_LOCAL_PROCESS_RANK": str(local),
            "PJRT_LOCAL_PROCESS_COUNT": str(job.local),
        }
        return Share(given, f"neuron:{core}", {"device_type": "xla"})


def _cores(text: str) -> tuple[str, ...]:
    """Parse ``"0-1,4"`` as cores 0, 1, 4; raise PlanError where the Neuron runtime refuses it."""
    cores: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if found is None or not (is_number(found[1]) and is_number(found[2] or "0")):
            raise PlanError(
                f'{CORES}={text!r} is malformed. Allowed: "4", "0-3", "0-1,4".', code="XMP-P07"
            )
        cores.extend(range(int(found[1]), int(found[2] or found[1]) + 1))
    if len(set(cores)) < len(cores):
        raise PlanError(f"{CORES}={text!r} names a core twice. Name each one once.", code="XMP-P07")
    return tuple(str(core) for core in cores)


def _need(job: Job) -> PortNeed:
    fixed = 0 if job.leasable else ROOT_PORT
    return PortNeed("root", "hold", job.coordinator, fixed, ROOT_PORT)
