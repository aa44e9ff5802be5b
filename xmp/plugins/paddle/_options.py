"""The options of ``spawn``: names, types, and those that Paddle has deprecated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from xmp._os import log
from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError, wrong_type

__all__ = ["Ids", "Options", "options_of", "port_of", "port_of_flags"]

Ids = tuple[int, ...]

NOW = ("start_method", "gpus", "xpus", "ips", "backend", "print_config", "runtime")
DEPRECATED = {
    "selected_devices": "gpus= (or xpus=)",
    "started_port": "the variable FLAGS_START_PORT, which paddle.distributed reads as well",
    "cluster_node_ips": "ips=",
    "node_ip": "ips=: xmp finds this host in it by its own addresses",
    "use_paddlecloud": "ips=",
}
"""Paddle 3.3.1's deprecated options (distributed/spawn.py), and what to write instead."""
_MOST_PORT = 65535
_TEXTS = ("start_method", "ips", "backend", "runtime", "cluster_node_ips", "node_ip")
_FLAGS = ("print_config", "use_paddlecloud")
_PAIRS = (("selected_devices", "gpus"), ("selected_devices", "xpus"), ("cluster_node_ips", "ips"))


@dataclass(frozen=True)
class Options:
    """The options with the types that they must have; None where one is left out."""

    start_method: str | None = None
    runtime: str | None = None
    backend: str | None = None
    gpus: Ids | None = None
    xpus: Ids | None = None
    selected_devices: Ids | None = None
    """Absolute ids of what the runtime has: GPUs or XPUs."""
    ips: str | None = None
    node_ip: str | None = None
    started_port: int | None = None
    use_paddlecloud: bool = False
    print_config: bool = False


def options_of(given: Mapping[str, object]) -> Options:
    """Check the options of a call, and warn its caller of deprecated ones.

    An option that is None counts as left out. Raise PlanError for an unknown name, for two options
    that mean one thing and for an impossible value, TypeError for a value of a wrong type.
    """
    for name in given:
        if name not in NOW and name not in DEPRECATED:
            raise PlanError(
                f"spawn has no option {name!r}.{_meant(name)} Allowed: {_allowed()}", code="XMP-P01"
            )
    known = {name: value for name, value in given.items() if value is not None}
    for pair in (("gpus", "xpus"), *_PAIRS):
        if known.keys() >= {*pair}:
            raise PlanError(
                f"{' and '.join(f'{name}={known[name]!r}' for name in pair)}: give one of the two",
                code="XMP-P02",
            )
    checked: dict[str, Any] = {name: _checked(name, value) for name, value in known.items()}
    for name in checked:
        if name in DEPRECATED:
            text = f"{name}= of spawn is deprecated: use {DEPRECATED[name]}"
            log.warn_caller(text, category=DeprecationWarning)
    ips = checked.pop("cluster_node_ips", None)
    return Options(**({**checked, "ips": ips} if ips is not None else checked))


def _allowed() -> str:
    return f"{', '.join(NOW)}; deprecated: {', '.join(DEPRECATED)}"


def _meant(name: str) -> str:
    near = get_close_matches(name, [*NOW, *DEPRECATED], 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _checked(name: str, value: object) -> object:
    if name in _TEXTS:
        if not isinstance(value, str):
            raise wrong_type(name, "a string or None", value)
        return value
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise wrong_type(name, "True, False or None", value)
        return value
    return port_of(name, value) if name == "started_port" else _ids(name, value)


def _kind(value: object) -> str:
    return type(value).__name__


def port_of(name: str, value: object) -> int:
    """Return a port of an option or a variable as a number; raise PlanError or TypeError."""
    if isinstance(value, str) and is_number(value.strip()):
        value = int(value)
    elif not isinstance(value, int) or isinstance(value, bool):
        if isinstance(value, str):
            raise PlanError(
                f"{name}={value!r}: give a number from 1 to {_MOST_PORT}", code="XMP-P01"
            )
        raise wrong_type(name, "a whole number or None", value)
    if not 0 < value <= _MOST_PORT:
        raise PlanError(f"{name}={value}: give a number from 1 to {_MOST_PORT}", code="XMP-P01")
    return value


def _ids(name: str, value: object) -> Ids:
    """Return ``"4,5"``, ``[4, 5]`` or ``(4, 5)`` as numbers; raise PlanError or TypeError."""
    if not isinstance(value, (str, list, tuple)):
        allowed = 'ids such as "4,5" or [4, 5], or None'
        raise wrong_type(name, allowed, value)
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        if not all(map(is_number, parts)):
            raise PlanError(
                f'{name}={value!r}: give ids such as "4,5", or leave {name} out for all',
                code="XMP-P01",
            )
        found = tuple(map(int, parts))
    else:
        for each in value:
            if isinstance(each, bool) or not isinstance(each, int):
                raise TypeError(f"{name} must hold whole numbers, not {_kind(each)}: {value!r}")
        found = tuple(value)
    if not found:
        raise PlanError(
            f"{name}={value!r}: give at least one id, or leave {name} out for all", code="XMP-P01"
        )
    if len({*found}) < len(found):
        raise PlanError(f"{name}={value!r} repeats an id: name each one once", code="XMP-P01")
    return found


def port_of_flags() -> int | None:
    """Return FLAGS_START_PORT, which Paddle 3.3.1 reads (distributed/fleet/launch.py), or None."""
    text = os.environ.get("FLAGS_START_PORT", "")
    return port_of("FLAGS_START_PORT", text) if text else None
