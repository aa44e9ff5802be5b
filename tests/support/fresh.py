"""Programs that need an interpreter of their own, which has imported nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

__all__ = ["in_fresh_interpreter"]


def in_fresh_interpreter(
    program: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, which must be a good one; ``env`` is its whole environment."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done
