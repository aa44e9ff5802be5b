"""Reading the kernel's small files: whatever cannot be read is empty."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["hexadecimal", "number", "text"]


def text(path: Path) -> str:
    """The file's text without surrounding blanks; empty where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.readall() or b"").decode(errors="replace").strip()
    except OSError:
        return ""


def hexadecimal(path: Path) -> int:
    """The file's hexadecimal number; -1 where there is none."""
    found = text(path)
    return int(found, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]+", found) else -1


def number(path: Path) -> int:
    """The digits in a file's name, as the kernel counts them: node10 comes after node9."""
    return int(re.sub(r"\D", "", path.name) or 0)
