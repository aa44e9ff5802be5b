"""Paddle: every trainer knows the endpoints of all trainers, and gets its device by a flag."""

from __future__ import annotations

from xmp._plan.clusters.launchers import ENDPOINTS, TRAINERS
from xmp._plan.runtimes._base import Fit, Job, Place, Runtime, Share
from xmp._plan.runtimes._cores import usable_cores
from xmp._plan.runtimes._gpus import CUDA_MASK, gpu_fit, place_in, visible_gpus
from xmp._plan.runtimes._meeting import gloo_interface
from xmp._plan.runtimes.cpu import MOST
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, PortNeed, Request

__all__ = ["Paddle"]

RANK = TRAINERS.rank
COUNT = TRAINERS.world
ENDPOINT = "PADDLE_CURRENT_ENDPOINT"  # "127.0.0.1:6070"
BACKEND = "PADDLE_DISTRI_BACKEND"
GPU = "FLAGS_selected_gpus"
FIRST_PORT = 6070


class Paddle(Runtime):
    """One GPU per trainer where there are any, else gloo on the cores."""

    name = "paddle"
    framework = "xmp.plugins.paddle.framework"
    family = "paddle"
    package = "paddle"
    distribution = "paddlepaddle"
    connected_by = ("paddle", "init_parallel_env()")
    owned = (RANK, COUNT, ENDPOINT, ENDPOINTS, "PADDLE_MASTER", GPU, CUDA_MASK)
    # Paddle's own spawn deletes these two in its trainers (python/paddle/distributed/spawn.py).
    removes = ("http_proxy", "https_proxy")

    def possible(self, facts: HostFacts) -> str:
        version = facts.frameworks.get("paddle")
        return f"paddle {version}" if version else ""

    def visible(self, facts: HostFacts) -> tuple[str, ...] | None:
        if facts.env.get(BACKEND) == "gloo":
            return None  # as in Paddle's own spawn, gloo means training on the CPU
        if facts.gpus.get("vendor") != "nvidia":
            return None
        return visible_gpus(facts.env.get(CUDA_MASK), facts.gpus.get("count", 0)) or None

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        visible = self.visible(facts)
        if visible is not None:
            return gpu_fit(visible, facts, CUDA_MASK, self.name)
        cores = usable_cores(facts)
        return Fit(min(cores, MOST), None, f"{cores} usable cores")

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        return tuple(_need(job, p.index, i) for p in job.places for i in range(job.local))

    def endpoints(self, job: Job, place: Place) -> str:
        pairs = ((host, i) for host in range(job.hosts) for i in range(job.local))
        return job.once(ENDPOINTS, lambda: ",".join(_endpoint(job, host, i) for host, i in pairs))

    def share(self, job: Job, place: Place, local: int) -> Share:
        endpoints = self.endpoints(job, place)
        rank = place.index * job.local + local
        given = {
            RANK: str(rank),
            COUNT: str(job.world),
            ENDPOINT: endpoints.split(",")[rank],
            ENDPOINTS: endpoints,
        }
        given |= gloo_interface(job, place)
        if self.visible(place.facts) is None:
            return Share({**given, BACKEND: "gloo"}, "cpu", {"device_type": "cpu"})
        given[CUDA_MASK], index = place_in(self.chosen(job, place), local)
        given[GPU] = str(index)
        return Share(given, f"gpu:{index}", {"device_type": "gpu"})


def _endpoint(job: Job, host: int, local: int) -> str:
    address = "127.0.0.1" if job.hosts == 1 else job.addresses[host]
    if not address:
        raise PlanError(
            f"the address of host {host} is not known; Paddle needs the address of every host. "
            "Start with a scheduler that lists the hosts (Slurm), or use one host.",
            code="XMP-H04",
        )
    if ":" in address:
        # Paddle splits an endpoint at its colon (3.3.1, distributed/parallel.py).
        raise PlanError(
            f"host {host} is {address}, and Paddle takes no IPv6 address in an endpoint. Give the "
            "name or the IPv4 address of every host.",
            code="XMP-H04",
        )
    return f"{address}:{job.port(_need(job, host, local))}"


def _need(job: Job, host: int, local: int) -> PortNeed:
    world = job.request.world
    first = job.request.store_port if world is None else world.port or job.request.store_port
    documented = (first or FIRST_PORT) + local
    fixed = 0 if job.leasable and not first else documented
    address = "127.0.0.1" if job.hosts == 1 else job.addresses[host]
    # Paddle's store binds the first one on all addresses, those of hosts on one machine too.
    how = "reuse" if local == 0 else "hold"
    return PortNeed(f"endpoint.{host}.{local}", how, address, fixed, documented, host)
