"""The messages between hosts: plain values as JSON, read with every field checked.

Nothing that comes from another host is unpickled. A reader ignores fields that it does not know
and takes the default for missing ones: hosts with different versions of xmp must get as far as the
roll call, which names both versions.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

__all__ = [
    "NEXT", "TEXT_LIMIT", "ArrivalIndex", "HostCard", "Malformed", "Proposal", "Refusal",
    "RollState", "Step", "decode", "encode",
]  # fmt: skip

TEXT_LIMIT = 32 * 1024
"""Characters of the longest text that a host sends; a longer one is cut at its end."""
LINE_LIMIT = 256
"""Characters of a name, a version, the class of an error."""
_LIST_LIMIT = 64
NEXT = -1
"""The attempt of a host that does not know the number of any."""
_NUMBER_LIMIT = 1 << 40
_DIGITS = 16
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SPACES = "\u00a0\u202f\u3000"
"""Spaces of French and Japanese text, which ``str.isprintable`` refuses."""
_LONG = frozenset({"text", "message", "traceback"})
"""The fields with several lines."""

T = TypeVar("T")


class Malformed(ValueError):
    """Bytes that no host of this job may have sent."""


@dataclass(frozen=True)
class HostCard:
    """One host's entry in the roll call."""

    index: int = -1
    hosts: int = 0
    """The number of hosts of the job with which this host was started."""
    name: str = ""
    replicas: int = 0
    xmp: str = ""
    """The version of xmp; ``python`` and ``framework`` likewise ("3.11.7", "torch 2.13.0")."""
    python: str = ""
    framework: str = ""
    max_restarts: int = 0
    restart: int = 0
    """The number of earlier attempts of this launch."""
    attempt: int = NEXT
    """The number of the attempt, counted by the coordinator; ``NEXT`` before the host knows it."""
    start_timeout: float = 300.0
    """Seconds for all hosts to come; host 0's value counts."""
    pace: float = 1.0
    """Seconds between two reports of progress."""
    launcher: str = "launcher"
    """The word for the launcher in messages: with an engine it is the "agent" of the host."""


@dataclass(frozen=True)
class ArrivalIndex:
    """The index of a host that is numbered by arrival."""

    index: int = -1
    """-1: any; otherwise the index that the host has from an earlier connection."""
    name: str = ""


@dataclass(frozen=True)
class RollState:
    """The state of the roll call, while hosts are missing and when all have come."""

    here: tuple[str, ...] = ()
    """The hosts that have come, as "0 (t1v-n-0)"."""
    missing: tuple[str, ...] = ()
    """Up to ``roll_call.SHOWN`` of the hosts that have not come, like ``here``; empty when all
    have."""
    absent: int = 0
    """The number of hosts that have not come."""
    note: str = ""
    """A further reason that may keep a host away."""
    first: str = ""
    """The name of host 0, if it has come."""
    aloud: bool = True
    """Whether to show it to the user now; else only when the user asks what xmp waits for."""
    attempt: int = 0
    salt: str = ""
    """Random, set when all hosts have come, so that no two attempts ever have the same key."""


@dataclass(frozen=True)
class Refusal:
    """Why the launch cannot start; the same on all hosts that have come."""

    text: str = ""
    plan: bool = False
    """Whether the hosts were started with settings that do not fit together (a ``PlanError``); else
    a host has not come in time (a ``StartError``)."""
    late: bool = False
    """Whether the host came after the launch had begun: it may belong to the next one."""


@dataclass(frozen=True)
class Step:
    """A host's answer in a round of the vote on ``preempted()``."""

    round: int = 0
    step: int = 0
    """The largest number of calls that a replica of the host has made."""


@dataclass(frozen=True)
class Proposal:
    """The call at which all replicas may end; each host answers with a ``Step`` of this round."""

    round: int = 0
    step: int = 0
    final: bool = False


def encode(words: Any) -> bytes:
    """Return one of these values as JSON, its texts cut to ``TEXT_LIMIT``."""
    values = {name: _fit(name, value) for name, value in asdict(words).items()}
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")


def decode(words: type[T], data: bytes) -> T:
    """Return the value that ``encode`` made. Raises Malformed for anything else.

    Its texts are safe to print: control characters, which a terminal would obey, are escaped.
    """
    try:
        given = json.loads(data.decode(), parse_int=_number)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON: {error}") from None
    if not isinstance(given, dict):
        raise Malformed(f"a JSON object was expected, not {type(given).__name__}")
    known = {field.name: str(field.type) for field in fields(words)}  # type: ignore[arg-type]
    return words(
        **{name: _checked(known[name], name, given[name]) for name in known.keys() & given.keys()}
    )


def _number(digits: str) -> int:
    """Return the number; refuse long ones: Python 3.10 takes seconds for 100,000 digits."""
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _checked(kind: str, name: str, value: Any) -> Any:
    if kind.startswith("tuple"):
        if not isinstance(value, list) or len(value) > _LIST_LIMIT:
            raise Malformed(f"{name} is no short list")
        item = "int" if "int" in kind else "str"
        return tuple(_checked(item, name, each) for each in value)
    if type(value).__name__ != kind:
        raise Malformed(f"{name} is no {kind}")
    if isinstance(value, str):
        limit = TEXT_LIMIT if name in _LONG else LINE_LIMIT
        if len(value) > limit:
            raise Malformed(f"{name} is longer than {limit} characters")
        return _printable(value, lines=name in _LONG)
    if isinstance(value, int) and abs(value) > _NUMBER_LIMIT:
        raise Malformed(f"{name} is {value}")
    return value


def _printable(text: str, lines: bool) -> str:
    """Return the text without colours and with each unprintable character escaped."""
    if text.isprintable():
        return text
    kept = _SPACES + "\n\t" if lines else _SPACES
    return "".join(
        each if each in kept or each.isprintable() else each.encode("unicode_escape").decode()
        for each in _COLOUR.sub("", text)
    )


def _fit(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_fit("", each) for each in value[:_LIST_LIMIT]]
    if not isinstance(value, str):
        return value
    if name not in _LONG:
        return value[:LINE_LIMIT]
    cut = "\n(the rest is cut)"
    return value if len(value) <= TEXT_LIMIT else value[: TEXT_LIMIT - len(cut)] + cut
