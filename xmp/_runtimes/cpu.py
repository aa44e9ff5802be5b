"""Processes on the host's cores, with torch's gloo where a group is wanted."""

from __future__ import annotations

from xmp._types import HostFacts, Request

from ._base import Fit, Job, Place, Runtime, Share, refuse_devices
from ._cores import usable_cores

__all__ = ["Cpu"]

MOST = 8
"""Replicas by default: a 128-core host should not be asked for 128 copies of a model."""


class Cpu(Runtime):
    """Any number of replicas; by default one per usable core, at most eight."""

    name = "cpu"
    framework = "xmp._frameworks.torch_dist"
    family = "torch"
    store = True
    default_backend = "gloo"
    backends = ("gloo", "mpi")

    def possible(self, facts: HostFacts) -> str:
        return "every host has cores"

    def fit(self, facts: HostFacts, request: Request) -> Fit:
        refuse_devices(request, self.name)
        cores = usable_cores(facts)
        return Fit(min(cores, MOST), None, f"{cores} usable cores")

    def share(self, job: Job, place: Place, local: int) -> Share:
        return Share(settings={"device_type": "cpu"})
