"""Reads small files of the kernel; a file that cannot be read counts as empty."""

from __future__ import annotations

import re
from pathlib import Path

from xmp._os.proc import text

__all__ = ["hexadecimal", "number", "text"]


def hexadecimal(path: Path) -> int:
    """Return the file's hexadecimal number; -1 where there is none."""
    found = text(path)
    return int(found, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]+", found) else -1


def number(path: Path) -> int:
    """Return the number in a file's name, to sort by: node10 comes after node9."""
    return int(re.sub(r"\D", "", path.name) or 0)
