"""Checks of numbers from outside: in the texts of variables, and as arguments."""

from __future__ import annotations

import numbers

from xmp._words.errors import wrong_type

__all__ = ["MOST", "is_number", "number_of_seconds"]

MOST = 2**20
"""The most hosts, ranks, devices or threads: more are a mistake, and would be an endless list."""


def is_number(text: str) -> bool:
    """Return whether ``int`` reads ``text`` as a whole number from 0 to ``MOST``.

    ``str.isdigit`` is true of "²", which ``int`` refuses.
    """
    short = len(text.lstrip("0")) <= len(str(MOST))
    return text.isascii() and text.isdigit() and short and int(text) <= MOST


def number_of_seconds(name: str, value: object, or_none: bool = False) -> float:
    """Return the value, a real number of any kind, as a float; raise TypeError for other values."""
    # numpy.float32 and Fraction are numbers.Real; Decimal is only a Number.
    unreal = isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real)
    if isinstance(value, bool) or not isinstance(value, numbers.Number) or unreal:
        allowed = "a number of seconds or None" if or_none else "a number of seconds"
        raise wrong_type(name, allowed, value)
    try:
        return float(value)  # type: ignore[arg-type]
    except (OverflowError, ValueError):  # 10**400; Decimal("sNaN")
        return float("nan")
