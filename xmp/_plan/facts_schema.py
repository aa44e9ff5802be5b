"""The allowed content of recorded facts, which come from other hosts in files that people edit.

The planner takes facts as they are, so whatever it does not expect is refused here, by its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from xmp._words.errors import PlanError

__all__ = ["checked"]

_MOST = 2**16
"""The most items of a list, devices, CPU numbers: more are a mistake, and a plan without end."""
_LONGEST_TEXT = 60

Check = Callable[[Any], bool]


def checked(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields that are not null; raise PlanError for the first invalid one."""
    found = {name: data[name] for name in FIELDS if data.get(name) is not None}
    for name, value in found.items():
        check, allowed = FIELDS[name]
        if not check(value):
            raise PlanError(
                f"{name} is {_shown(value)}. Allowed: {allowed}, or null", code="XMP-P01"
            )
    for name, keys in KEYS.items():
        for key, (check, allowed) in keys.items():
            value = found.get(name, {}).get(key)
            if value is not None and not check(value):
                raise PlanError(
                    f"{name}.{key} is {_shown(value)}. Allowed: {allowed}, or null", code="XMP-P01"
                )
    for name, number, kinds in WHOLE:
        if found.get(name) and not any(found[name].get(kind) for kind in kinds):
            what = f"{_shown(found[name])}, which does not say what they are"
            raise PlanError(
                f"{name} is {what}. Allowed: {number} with {' or '.join(kinds)}, or {{}}",
                code="XMP-P01",
            )
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _is_text(value: Any) -> bool:
    """Return whether the environment can hold it: no NUL, surrogates only for undecoded bytes."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_quota(value: Any) -> bool:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and math.isfinite(value) and 0 < value <= _MOST


def _list_of(check: Check) -> Check:
    return lambda value: (
        isinstance(value, (list, tuple)) and len(value) <= _MOST and all(map(check, value))
    )


def _map_to(check: Check) -> Check:
    return lambda value: (
        isinstance(value, Mapping)
        and all(_is_text(key) and check(each) for key, each in value.items())
    )


def _is_version(value: Any) -> bool:
    return value is None or _is_text(value)


_TEXT = (_is_text, "a text without NUL")
_COUNT = (_is_count, f"a whole number from 0 to {_MOST}")
_TEXTS = (_list_of(_is_text), "a list of texts")
_CPUS = f"CPU numbers from 0 to {_MOST}"
_VARIABLES = (_map_to(_is_text), "an object of texts")
FIELDS: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("hostname", "address", "interface", "platform", "python"), _TEXT),
    **dict.fromkeys(("env", "env_at_start", "metadata", "host_files"), _VARIABLES),
    **dict.fromkeys(("tpu", "gpus"), (_map_to(lambda _: True), "an object")),
    "frameworks": (_map_to(_is_version), "an object of versions as texts, null if not installed"),
    "cpus": (_list_of(_is_count), f"a list of {_CPUS}"),
    "numa": (_list_of(_list_of(_is_count)), f"a list of lists of {_CPUS}"),
    **dict.fromkeys(("loaded", "initialised"), _TEXTS),
    "cpu_quota": (_is_quota, f"a number above 0, to {_MOST}"),
    "memory_bytes": (_is_size, "a whole number from 0 to 2**63 - 1"),
}
KEYS: dict[str, dict[str, tuple[Check, str]]] = {
    "tpu": {
        **dict.fromkeys(("generation", "nodes", "unknown"), _TEXT),
        **dict.fromkeys(("chips", "devices"), _COUNT),
    },
    "gpus": {"vendor": _TEXT, "count": _COUNT},
}
WHOLE = (("tpu", "chips", ("generation", "unknown")), ("gpus", "count", ("vendor",)))
"""Numbers of devices that mean nothing without their kind, and the fields that name the kind."""
