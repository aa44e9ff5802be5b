"""Say what the papers of a release lack, a line each: ``python papers.py FOLDER VERSION``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from pip._vendor import tomli  # tomllib came with Python 3.11; pip brings its own


def lacks(root: Path, version: str) -> Iterator[str]:
    """Find what must be written before an upload."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## \[{re.escape(version)}\] - (.*)$", changelog, re.MULTILINE)
    if not (section and is_date(section[1])):
        yield f'CHANGELOG.md has no section "## [{version}] - {date.today()}": write it'
    project = tomli.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    home = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["home"]
    if not home.startswith("https://"):
        yield "pyproject.toml has no home: write the address of the public repository there"


def is_date(text: str) -> bool:
    """Tell whether this is a day of the calendar, as in 2026-12-31."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


if __name__ == "__main__":
    for line in lacks(Path(sys.argv[1]), sys.argv[2]):
        print(line)
