"""Whether the driver of a round on Ray said the truth, in time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_kinds import RayRound

__all__ = ["SUMS", "misses"]

SUMS = [[rank, rank // 2, 4, 6.0] for rank in range(4)]
"""The results of a launch that goes well."""


def misses(round: RayRound, said: Mapping[str, Any], took: float, slow: float = 1.0) -> list[str]:
    """Everything that is not as it must be.

    ``said``: "results" or "error", "hosts": the nodes' names in the job's order, where there was a
    job, and "code": the driver's exit code, where it has ended. ``took``: seconds from the fault to
    that. ``slow``: how many times longer than usual everything took on this machine then.
    """
    miss = _miss(round, said)
    found = [f"{miss}; it said: {said}"] if miss else []
    if round.fault.limit and took > round.limit * slow:
        found.append(f"{took:.2f} s, more than {round.limit:g} s")
    return found


def _miss(round: RayRound, said: Mapping[str, Any]) -> str:
    if not round.fault.ends:
        return "" if said.get("results") == SUMS else f"wanted the results {SUMS}"
    if round.gone:
        wanted = -9 if round.kind == "driver-killed" else -15
        return "" if said.get("code") == wanted else f"wanted the exit code {wanted}"
    if "error" not in said:
        return "wanted an error"
    error = said["error"]
    if error["type"] not in round.fault.ends:
        return f"wanted one of {round.fault.ends}"
    if round.fault.words:
        return _wrong_replica(round, error, said["hosts"])
    if round.fault.victim == "host" and f"h{round.host}" not in error["text"]:
        return f"h{round.host} is not named"
    if error["type"] == "HostLost" and error["host"] != f"h{round.host}":
        return f"wanted h{round.host} as the host that is lost"
    return ""


def _wrong_replica(round: RayRound, error: Mapping[str, Any], hosts: list[str]) -> str:
    wanted = (round.victim, hosts[round.victim // 2])
    if (error["rank"], error["host"]) != wanted:
        return f"wanted {wanted}"
    if round.fault.words not in error["text"]:
        return f"{round.fault.words!r} is not in the text"
    if round.kind == "raise" and "planned" not in error["traceback"]:
        return "no traceback"
    return ""
