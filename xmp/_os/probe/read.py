"""Reading the kernel's small files; what cannot be read is empty."""

from __future__ import annotations

import re
from pathlib import Path

from xmp._os.proc import text

__all__ = ["hexadecimal", "number", "text"]


def hexadecimal(path: Path) -> int:
    """The file's hexadecimal number; -1 where there is none."""
    found = text(path)
    return int(found, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]+", found) else -1


def number(path: Path) -> int:
    """The number in a file's name: node10 comes after node9."""
    return int(re.sub(r"\D", "", path.name) or 0)
