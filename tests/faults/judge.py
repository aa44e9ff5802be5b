"""Whether a launch reported the truth about its round, in time. Pure: facts in, misses out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acts import HUGE, value
from kinds import Round

__all__ = ["PATIENCE", "Facts", "limit", "misses", "seconds"]

PATIENCE = 1.0
"""Seconds from a fault to its verdict, beside the grace and the time limit that makes it one.

On a host that is slower than usual as many times more.
"""
_SECOND = 1e9


@dataclass(frozen=True)
class Facts:
    """What was seen of one round; times in monotonic nanoseconds."""

    code: int
    err: str
    fault: int | None
    said: Mapping[str, Any] | None
    left: Mapping[int, str] = field(default_factory=dict)
    """Processes that were there a second after the launcher's end."""
    files: tuple[str, ...] = ()
    slow: float = 1.0
    """How many times longer than usual everything took on this host then."""


def seconds(round: Round, facts: Facts) -> float | None:
    """From the fault to the verdict, where there is one; from the end of a limit of the call."""
    if round.fault.verdict in ("", "gone") or facts.fault is None or not facts.said:
        return None
    limit = facts.said["called"] + round.total * _SECOND if round.total else 0
    return float((facts.said["at"] - max(facts.fault, limit)) / _SECOND)


def limit(round: Round, slow: float) -> float:
    """Seconds that may pass from the fault to the verdict."""
    return PATIENCE * slow + round.grace + round.limits.get("hang_timeout", 0)


def misses(round: Round, facts: Facts) -> list[str]:
    """Everything that is not as it must be."""
    found = [f"left alive: {facts.left}"] if facts.left else []
    found += [f"left: {name}" for name in facts.files]
    if facts.fault is None:
        found.append("the fault did not happen")
    if round.fault.verdict == "gone":
        return found
    if facts.said is None:
        return [*found, f"the launcher ended with {facts.code} without a word:\n{facts.err}"]
    return [*found, *_afterwards(facts.said), *_verdict(round, facts.said), *_time(round, facts)]


def _time(round: Round, facts: Facts) -> list[str]:
    took, most = seconds(round, facts), limit(round, facts.slow)
    late = took is not None and took > most
    return [f"verdict after {took:.2f} s, more than {most:.3g} s"] if late else []


def _afterwards(said: Mapping[str, Any]) -> list[str]:
    found = []
    alive = {pid: n for pid, n in said["alive"].items() if n not in ("xmp-template", "xmp-script")}
    if alive:
        found.append(f"alive when spawn came back: {alive}")
    if said["again"] != [0, 1]:
        found.append(f"the next launch returned {said['again']}")
    if said["children"] or said["threads"] != 1:
        found.append(f"at the end: children {said['children']}, {said['threads']} threads")
    return found


# --- the verdict ---------------------------------------------------------------------------------


def _verdict(round: Round, said: Mapping[str, Any]) -> list[str]:
    kind, error = round.fault, said.get("error")
    if kind.verdict == "":
        wanted = {str(rank): _result(round, rank) for rank in range(round.nprocs)}
        if error is None and said["results"] == wanted:
            return []
        return [f"wanted the results {wanted}, got {error or said['results']}"]
    if error is None:
        return [f"wanted {kind.verdict}, got the results {said['results']}"]
    return [f"{miss}; it said:\n{error['text']}" for miss in _wrong(round, error, said["results"])]


def _result(round: Round, rank: int) -> Any:
    if rank != round.victim:
        return value(rank)
    if round.kind == "huge-result":
        return [HUGE, 1]
    return None if round.kind == "os-exit-0" else value(rank)


def _wrong(round: Round, error: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    kind, found = round.fault, []
    wanted = "StartError" if round.rankless and not kind.limit else kind.verdict
    if error["type"] != wanted:
        found.append(f"wanted {wanted}, got {error['type']}")
    strange = {r: v for r, v in results.items() if v != _result(round, int(r))}
    if strange:
        found.append(f"strange results {strange}")
    if kind.outside or round.rankless:
        return found if kind.words in error["text"] or round.rankless else [*found, "no words"]
    if kind.limit:
        return found + _wrong_limit(round, error)
    return found + _wrong_cause(round, error, results)


def _wrong_limit(round: Round, error: Mapping[str, Any]) -> list[str]:
    found = []
    if round.victim not in error["stacks"]:
        found.append(f"no stacks of rank {round.victim}, only of {error['stacks']}")
    if "cause" in error["labels"].values():
        found.append(f"a replica is called the cause: {error['labels']}")
    if round.moment in ("late", "import") and error["rank"] != round.victim:
        found.append(f"rank {round.victim} was waited for, it names {error['rank']}")
    return found


def _wrong_cause(round: Round, error: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    kind, found = round.fault, []
    wanted = {"rank": round.victim, "signal": kind.signal}
    if kind.exit_code is not None:
        wanted["exit_code"] = kind.exit_code
    got = {name: error[name] for name in wanted}
    if got != wanted:
        found.append(f"wanted {wanted}, got {got}")
    labels = dict(error["labels"])
    if labels.pop(str(round.victim), None) != "cause" or "cause" in labels.values():
        found.append(f"labels {error['labels']}")
    if not error["text"].startswith(f"rank {round.victim} of {round.nprocs} "):
        found.append("the text does not begin with the victim")
    if kind.words not in error["text"]:
        found.append(f"{kind.words!r} is not in the text")
    if round.moment == "late" and len(results) != round.nprocs - 1:
        found.append(f"only {sorted(results)} have results")
    return found
