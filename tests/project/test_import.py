"""``import xmp`` is fast and imports nothing but the standard library."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.support.fresh import in_fresh_interpreter

FOREIGN = {"torch", "jax", "jaxlib", "numpy", "cloudpickle", "psutil", "rich", "yaml", "ray"}
LIMIT = 0.050  # seconds of a processor, which other processes take from the clock's
ROUNDS = 7

SHOW_MODULES = """
import sys
before = set(sys.modules)
import xmp
print("\\n".join(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def seconds(code: str, cache: Path) -> float:
    """Processor time, with bytecode cached as when a package is imported a second time."""
    cached = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cache)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    in_fresh_interpreter(code, {**os.environ, **cached})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_import_brings_the_standard_library_alone() -> None:
    brought = set(in_fresh_interpreter(SHOW_MODULES).stdout.split())
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
    in_fresh_interpreter("import xmp.__main__; assert callable(xmp.__main__.main)")


def test_the_first_template_starts_before_the_engine_is_imported(tmp_path: Path) -> None:
    """It comes up while its launcher imports the other 45 ms of the engine."""
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess, sys, xmp\n"
        "start = subprocess.Popen.__init__\n"
        "def first(*args, **options):\n"
        "    print('xmp._processes.launcher.launch' in sys.modules)\n"
        "    subprocess.Popen.__init__ = start\n"
        "    start(*args, **options)\n"
        "if __name__ == '__main__':\n"
        "    subprocess.Popen.__init__ = first\n"
        "    print(*xmp.spawn(abs, nprocs=2, runtime='cpu'))\n"
    )
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n0 1\n"
