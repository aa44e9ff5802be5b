"""Which hosts of the cluster a launch takes, and what it takes of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xmp._types import Request

__all__ = ["Wanted", "bundles", "wanted"]


@dataclass(frozen=True)
class Wanted:
    """What a launch asks for: the same for two launches that can use the same group."""

    hosts: int
    nprocs: int | None
    runtime: str | None
    runtime_env: str = ""
    """What Ray prepares there, as JSON."""


def wanted(hosts: int, request: Request) -> Wanted:
    """What ``launch`` was given."""
    return Wanted(hosts, request.nprocs, request.runtime)


def bundles(need: Wanted, totals: list[dict[str, float]]) -> list[dict[str, float]]:
    """Of each host: its processors for the replicas, and GPUs where the runtime may use them.

    ``totals``: what each host of the cluster has.
    """
    least = min((int(each.get("CPU", 0)) for each in totals), default=0)
    bundle: dict[str, Any] = {"CPU": float(min(need.nprocs or least, least))}
    gpus = max((int(each.get("GPU", 0)) for each in totals), default=0)
    if gpus and need.runtime not in ("cpu", "fake"):
        bundle["GPU"] = float(need.nprocs or gpus)
    return [{name: count for name, count in bundle.items() if count}] * need.hosts
