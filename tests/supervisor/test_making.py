"""A replica that cannot be started: none is left, and the error says which limit was reached."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import resource
import xmp

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
    try:
        xmp.spawn(print, nprocs=64, runtime="cpu", start_method="spawn")
    except xmp.StartError as error:
        print(error)
"""


def test_the_error_names_the_limits(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=True
    )
    first, second = done.stdout.splitlines()
    assert re.match(r"replica \d+ of 64 could not be started: .*Too many open files", first)
    assert "150 open files (ulimit -n)" in second
    assert done.stderr == ""
