"""TPU hosts as the planner sees them, for the tests of plans."""

from __future__ import annotations

from typing import Any

from xmp._plan import planner
from xmp._words.types import HostFacts, JobPlan, Request

__all__ = ["ALL", "FRAMEWORKS", "host", "plan", "variables"]

FRAMEWORKS = {"torch": "2.9.1+cpu", "torch_xla": "2.9.0", "jax": "0.10.2", "libtpu": "0.0.51"}
ALL = {**FRAMEWORKS, "torch": "2.13.0+cpu", "torch_tpu": "0.2.0"}


def host(generation: str = "v5e", chips: int = 8, **given: Any) -> HostFacts:
    """A host with these chips; further facts as ``HostFacts`` has them."""
    tpu = {"generation": generation, "chips": chips, "nodes": "vfio"}
    return HostFacts(**{"tpu": tpu, "frameworks": ALL, **given})


def plan(facts: HostFacts, runtime: str = "pjrt", **request: Any) -> JobPlan:
    """The plan of a request."""
    return planner.plan(Request(runtime=runtime, **request), facts)


def variables(made: JobPlan, name: str) -> list[str | None]:
    """One variable of every replica."""
    return [dict(r.set).get(name) for h in made.hosts for r in h.replicas]
