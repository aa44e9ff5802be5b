"""The wheel of this commit in an environment of its own, for each Python that xmp is for."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MISSING", "PYTHONS", "Installed", "build", "install"]

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
GIVEN = dict(line.split("=", 1) for line in os.environ.get("XMP_TEST_PYTHONS", "").splitlines())
PYTHONS = {OWN: sys.executable, **GIVEN}
"""The interpreter of each version, by ./scripts/test; "" where it is not installed."""
MISSING = "Python {} is not installed here: what pyproject.toml claims is not tried in it"


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel and what it requires, in a folder without our sources."""

    folder: Path

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end."""
        program, *words = command
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        return subprocess.run(
            [str(self.folder / "env/bin" / program), *words],
            cwd=self.folder, env=variables, capture_output=True, text=True, timeout=100,
        )  # fmt: skip

    def write(self, text: str) -> str:
        """Save a program of a user; its name for ``run``."""
        (self.folder / "program.py").write_text(text)
        return "program.py"


def build(checkout: Path, into: Path) -> None:
    """Build both distributions of the commit HEAD, as an offline machine does.

    With the hatchling that is here, of what git has: beside it a checkout may have files that git
    hides and hatchling would take.
    """
    source = into / "source"
    command = ["git", "archive", "--format=tar", "-o", str(into / "archive"), "HEAD"]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, timeout=60)
    with tarfile.open(into / "archive") as archive:
        archive.extractall(source, filter="fully_trusted")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)


def install(wheel: Path, python: str, folder: Path) -> Installed:
    """Install by pip; what the wheel requires comes from the index that pip is set up for."""
    environment = folder / "env"
    make = [python, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(make, check=True, capture_output=True, timeout=100)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    into = [*pip, "--python", str(environment / "bin/python"), "install", "-q"]
    # Most of the package is never imported here: pip would compile all of it, 2 s for each Python.
    command = [*into, "--no-compile", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=170)
    return Installed(folder)
