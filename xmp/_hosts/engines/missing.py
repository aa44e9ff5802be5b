"""A module that a host lacks, as an error from there names it."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Missing", "missing_in"]

_NOT_FOUND = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_ANOTHER = re.compile(r"AttributeError: Can't get attribute '([\w.<>]+)' on <module '([\w.]+)'")


class Missing(NamedTuple):
    """What an import or a lookup by name has not found on a host."""

    module: str
    name: str = ""
    """What the module there does not have; "": there is no such module."""


def missing_in(text: str) -> Missing | None:
    """Return what the first line of an error says is missing, if it says that."""
    line = text.partition("\n")[0]
    if found := _NOT_FOUND.search(line):
        return Missing(found[1])
    if found := _ANOTHER.search(line):
        return Missing(found[2], found[1])
    return None
