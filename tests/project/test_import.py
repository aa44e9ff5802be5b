"""``import xmp`` costs next to nothing and brings the standard library alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

FOREIGN = {"torch", "jax", "jaxlib", "numpy", "cloudpickle", "psutil", "rich", "yaml", "ray"}
LIMIT = 0.050  # seconds
ROUNDS = 7

SHOW_MODULES = """
import sys
before = set(sys.modules)
import xmp
print("\\n".join(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def run(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, **env},
    )
    return done.stdout


def seconds(code: str, cache: Path) -> float:
    """With bytecode cached, as it is for whoever imports a package a second time."""
    start = time.perf_counter()
    run(code, PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(cache))
    return time.perf_counter() - start


def test_import_brings_the_standard_library_alone() -> None:
    brought = set(run(SHOW_MODULES).split())
    assert not brought & FOREIGN
    assert brought <= sys.stdlib_module_names | {"xmp"}


def test_import_is_quick(tmp_path: Path) -> None:
    """The best of several, alternating: what a busy machine adds hits both kinds alike.

    A machine slower than 20 ms for a bare interpreter gets as much more time in proportion.
    """
    seconds("import xmp", tmp_path)
    pairs = [(seconds("pass", tmp_path), seconds("import xmp", tmp_path)) for _ in range(ROUNDS)]
    bare = min(pair[0] for pair in pairs)
    ours = min(pair[1] for pair in pairs)
    assert ours - bare < LIMIT * max(1.0, bare / 0.020), f"{ours:.3f} s beside {bare:.3f} s"


def test_the_command_line_is_there() -> None:
    run("import xmp.__main__; assert callable(xmp.__main__.main)")
