"""Whether the hosts of a round said the truth, in time. Pure: what they said in, misses out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from host_kinds import HostRound

__all__ = ["RESULTS", "Said", "misses", "seconds"]

Said = Mapping[int, Mapping[str, Any]]
"""By host: "results" or "error", and in "at" when that was, in monotonic nanoseconds."""
RESULTS = {
    "sums": [[[0, 0, 4, 6.0], [1, 0, 4, 6.0]], [[2, 1, 4, 6.0], [3, 1, 4, 6.0]]],
    "late": [[0, 1], [2, 3]],
}


def misses(round: HostRound, fault: int, said: Said, slow: float = 1.0) -> list[str]:
    """Everything that is not as it must be; ``fault`` is when it happened.

    ``slow``: how many times longer than usual everything took on this machine then.
    """
    found = []
    for host, each in said.items():
        miss = _miss(round, host, each)
        if miss:
            found.append(f"host {host}: {miss}; it said: {each}")
    took = seconds(round, fault, said)
    if took is not None and took > round.limit * slow:
        found.append(f"{took:.2f} s, more than {round.limit:g} s")
    return found


def seconds(round: HostRound, fault: int, said: Said) -> float | None:
    """Until the last host knew that could; a launcher that is stopped knows nothing."""
    stopped = round.host if round.kind == "launcher-stopped" else -1
    at = [each["at"] for host, each in said.items() if "error" in each and host != stopped]
    return (max(at) - fault) / 1e9 if at else None


def _miss(round: HostRound, host: int, said: Mapping[str, Any]) -> str:
    if round.kind == "launcher-paused":
        wanted = [results[host] for results in RESULTS.values()]
        return "" if said.get("results") in wanted else "wanted results"
    if "error" not in said:
        return "wanted an error"
    error = said["error"]
    if round.of_a_replica:
        return _wrong_replica(round, error)
    if host == round.host:
        return "" if error["type"] in round.fault.own else f"wanted one of {round.fault.own}"
    lost = ("StartError", "HostLost") if round.moment == "roll-call" else ("HostLost",)
    if error["type"] not in lost:
        return f"wanted one of {lost}"
    return "" if f"host {round.host}" in error["text"] else f"host {round.host} is not named"


def _wrong_replica(round: HostRound, error: Mapping[str, Any]) -> str:
    raises = round.kind in ("raise", "launcher-stopped")
    kind = "ReplicaRaised" if raises else "ReplicaDied"
    wanted = (kind, round.victim, f"h{round.victim // 2}")
    if (error["type"], error["rank"], error["host"]) != wanted:
        return f"wanted {wanted}"
    words = round.fault.words or "raised ValueError: planned"
    if words not in error["text"]:
        return f"{words!r} is not in the text"
    return "no traceback" if raises and "planned" not in error["traceback"] else ""
