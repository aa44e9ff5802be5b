"""More replicas than the limits allow: none is started, and the error says which limit."""

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


def test_the_error_names_the_limit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=True
    )
    words = r"a process may have 150 open files \(ulimit -Hn\), and the supervisor of 64 replicas "
    assert re.fullmatch(rf"{words}needs \d+: raise the limit \[XMP-S01\]\n", done.stdout)
    assert done.stderr == ""
