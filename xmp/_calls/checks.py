"""Readers of option values: each checks what was given for a name, and returns what a field holds.

An error says what was given, what is allowed and what to do: PlanError for a value that cannot be,
TypeError for one of a wrong type.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping
from typing import Any, SupportsIndex, cast

from xmp._plan.numbers import number_of_seconds
from xmp._words.errors import PlanError, brief, wrong_type

from .call_checks import check_arguments

__all__ = [
    "METHODS",
    "binding",
    "count_from_zero",
    "events",
    "folder",
    "mapping",
    "nanoseconds",
    "nanoseconds_of_a_hang",
    "plain",
    "positions",
    "prefix",
    "progress",
    "random_seed",
    "ranks",
    "replicas",
    "seconds_of_grace",
    "start_method",
    "text",
    "variables",
    "whole_number",
    "yes_or_no",
]

METHODS = ("forkserver", "spawn", "fork")
_YEARS = 1e9  # seconds: longer than any wait, and the clock can still count it
_LEAST_HANG = 0.1  # seconds: a replica shows progress eight times in it, which must cost nothing
_MOST_BITS = 10_000
_MOST_RANKS = 1_000_000  # more are a mistake, and would be a long list


# --- start and end of replicas --------------------------------------------------------------------


def start_method(name: str, method: str | None) -> str:
    text(name, method)
    linux = sys.platform == "linux"
    if method is None:
        return "forkserver" if linux else "spawn"
    if method not in METHODS:
        raise PlanError(f"{name}={brief(method)}: give one of {', '.join(METHODS)}", code="XMP-P01")
    if not linux and method != "spawn":
        raise PlanError(
            f"{name}={brief(method)}: on {sys.platform} there is only 'spawn'", code="XMP-P04"
        )
    return plain(method)


def seconds_of_grace(name: str, grace: object) -> float:
    seconds = number_of_seconds(name, grace)
    if not 0 <= seconds < _YEARS:
        raise PlanError(
            f"{name}={brief(grace)}: give a number of seconds from 0 up, and below 1e9",
            code="XMP-P01",
        )
    return seconds


def nanoseconds(name: str, value: object, least: float = 0.0) -> int | None:
    """Read a limit in seconds; None for no limit."""
    if value is None:
        return None
    seconds = number_of_seconds(name, value, or_none=True)
    if not 0 < seconds < _YEARS:
        allowed = "a number of seconds above 0 and below 1e9, or None for no limit"
        raise PlanError(f"{name}={brief(value)}: give {allowed}", code="XMP-P01")
    if seconds < least:
        raise PlanError(
            f"{name}={brief(value)}: a busy host may make no progress for that long; give a number "
            f"of seconds from {least} up, or None for no limit",
            code="XMP-P01",
        )
    return max(1, int(seconds * 1e9))


def nanoseconds_of_a_hang(name: str, value: object) -> int | None:
    return nanoseconds(name, value, least=_LEAST_HANG)


# --- what is seen of a launch ---------------------------------------------------------------------


def progress(name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        allowed = "True, False or None (on a terminal, when the start takes long)"
        raise wrong_type(name, allowed, value)
    return value


def events(name: str, value: Any) -> Any:
    """Return the function or the path that gets the events; None for neither."""
    if isinstance(value, (str, os.PathLike)):
        if not os.fspath(value):
            raise PlanError(
                f"{name}={brief(value)}: give the path of a file, or a function", code="XMP-P01"
            )
    elif value is not None and not callable(value):
        raise wrong_type(name, "a function of one event or the path of a file of JSON lines", value)
    elif value is not None:
        _check_call(name, value, "each event")
    return value


def _check_call(name: str, function: Any, argument: str) -> None:
    """Raise TypeError unless a function that was given for this name takes one argument."""
    try:
        check_arguments(function, (None,), {})
    except TypeError as error:
        raise TypeError(f"{name}= is called with {argument}: {error}") from None


def binding(name: str, value: object) -> bool | str | None:
    """Return whether replicas are pinned, and to what; the plan knows which words there are."""
    if value is None or isinstance(value, (bool, str)):
        return plain(value) if isinstance(value, str) else value
    raise wrong_type(name, 'True, False, "cores", "numa" or None', value)


def yes_or_no(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(name, "True or False", value)
    return value


def folder(name: str, value: object) -> str | None:
    """Return the absolute path of a folder; None for none."""
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise wrong_type(name, "the path of a folder or None", value)
    if not path:
        raise PlanError(
            f"{name}='': give the path of a folder, or None for no files", code="XMP-P01"
        )
    return os.path.abspath(plain(path))


def prefix(name: str, value: object) -> str | None:
    if value is None or value is False:
        return None
    if value is True:
        return "[{rank}] "
    if not isinstance(value, str):
        raise wrong_type(name, "True, a string or None", value)
    from string import Formatter  # here: most programs need none

    try:
        fields = {field for _, field, _, _ in Formatter().parse(value) if field is not None}
        fits = fields <= {"rank", "local_rank", "host"}
        line = value.format(rank=0, local_rank=0, host="") if fits else "\n"
        line.encode()  # an unpaired surrogate has no UTF-8
    except (LookupError, ValueError, AttributeError):
        line = "\n"
    if "\n" in line or "\r" in line:
        raise PlanError(
            f'{name}={brief(value)}: give one line such as "[{{rank}}] "; it may use {{rank}}, '
            "{local_rank} and {host}",
            code="XMP-P01",
        )
    return plain(value)


def ranks(name: str, value: object) -> tuple[int, ...] | None:
    """Return the ranks whose output is shown; None for all."""
    if value is None:
        return None
    if isinstance(value, str):
        if value in ("all", "none"):
            return None if value == "all" else ()
        try:
            items = [rank for part in value.split(",") for rank in _range(part)]
        except ValueError:
            allowed = '"all", "none", "0", "0,2-3", [0, 2], range(4) or 0'
            raise PlanError(f"{name}={brief(value)}: give {allowed}", code="XMP-P01") from None
        return tuple(items)
    listed = _items(value)
    given = [value] if listed is None else listed
    found = [whole_number(name, item) for item in given]
    if None in found:
        raise TypeError(f"{name} must hold ranks, not None: {brief(value)}")
    return tuple(rank for rank in found if rank is not None)


def _items(value: object) -> list[Any] | None:
    """Return the items of what has some; None of other values, such as an array of no dimension."""
    try:
        return None if isinstance(value, (str, bytes, Mapping)) else list(cast(Any, value))
    except TypeError:
        return None


def _range(part: str) -> range:
    """Return the ranks of "2" or "2-5"; ValueError for other text."""
    first, dash, last = part.strip().partition("-")
    if not (first.strip().isdecimal() and (last.strip().isdecimal() or not dash)):
        raise ValueError(part)
    ranks = range(int(first), int(last or first) + 1)
    if not 0 < len(ranks) < _MOST_RANKS:
        raise ValueError(part)
    return ranks


# --- numbers and texts ----------------------------------------------------------------------------


def text(name: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise wrong_type(name, "a string or None", value)
    return None if value is None else plain(value)


def plain(value: str) -> str:
    """Return a string as str itself: supervisors and agents do not have the program's enums."""
    return str.__str__(value)


def whole_number(name: str, value: object) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(cast(SupportsIndex, value))
        if not isinstance(value, bool) and number == value:  # a tensor of 2.7 has the index 2
            if number.bit_length() > _MOST_BITS:  # Python does not write those of 4,300 digits
                raise PlanError(
                    f"{name} is a number of {number.bit_length()} bits: give a smaller",
                    code="XMP-P01",
                )
            return int(number)
    except (TypeError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
    raise wrong_type(name, "a whole number", value)


def random_seed(name: str, value: object) -> int | None:
    """Return a seed that ``torch.manual_seed`` takes."""
    seed = whole_number(name, value)
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise PlanError(
            f"{name}={seed}: give a whole number from -2**63 to 2**64 - 1, as for torch",
            code="XMP-P01",
        )
    return seed


def count_from_zero(name: str, value: object) -> int:
    count = whole_number(name, value)
    if count is None:
        raise TypeError(f"{name} must be a whole number, not None; 0 for none")
    if count < 0:
        raise PlanError(f"{name}={count}: give a whole number from 0 up", code="XMP-P01")
    return count


# --- replicas, their devices and variables --------------------------------------------------------


def replicas(name: str, value: object) -> int | None:
    """Return a number of replicas; None and -1 stand for one per device."""
    count = whole_number(name, value)
    if count is not None and count < 1 and count != -1:
        raise PlanError(
            f"{name}={count}: give a number from 1 up, or None for every device", code="XMP-P01"
        )
    return count


def positions(name: str, devices: object) -> tuple[int, ...] | None:
    """Return positions among the visible devices; None for all."""
    if devices is None:
        return None
    items = devices.split(",") if isinstance(devices, str) else _items(devices)
    if items is None:
        raise wrong_type(name, 'positions such as [4, 5] or "4,5"', devices)
    try:
        found = tuple(int(item) if isinstance(item, str) else _position(item) for item in items)
    except ValueError:
        raise PlanError(
            f'{name}={brief(devices)}: give positions such as [4, 5] or "4,5"', code="XMP-P01"
        ) from None
    if not found:
        raise PlanError(
            f"{name}={brief(devices)}: give at least one position, or None for all", code="XMP-P01"
        )
    return found


def _position(item: object) -> int:
    position = whole_number("devices", item)
    if position is None:
        raise TypeError("devices must hold whole numbers, not None")
    return position


def variables(name: str, value: Any) -> Any:
    """Return a mapping of variables, or the function that gives one for each local rank."""
    if callable(value):
        _check_call(name, value, "the local rank")
        return value
    return None if value is None else mapping(name, value)


def mapping(name: str, value: object) -> Mapping[str, str]:
    """Return a mapping of variables that the system takes."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of strings, not {type(value).__name__}")
    for key, each in value.items():
        if not isinstance(key, str) or not isinstance(each, str):
            raise TypeError(f"{name} must map strings to strings: {brief(key)}: {brief(each)}")
        if not (key and "=" not in key and _is_for_the_system(key + each)):
            raise PlanError(
                f"{name}={{{key!r}: {brief(each)}}}: the name of a variable is not empty and has "
                "no '=', and neither name nor value has a NUL character or an unpaired surrogate",
                code="XMP-P05",
            )
    return {plain(key): plain(each) for key, each in value.items()}


def _is_for_the_system(text: str) -> bool:
    """Return whether the C library takes this text."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
