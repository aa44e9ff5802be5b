"""What ``import xmp`` loads: little of the standard library, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.fresh import in_fresh_interpreter

# All that it may import beyond a bare interpreter's modules; what these import themselves differs
# with the version of Python. Every program waits for each one more: dataclasses takes 12 ms (it
# imports inspect), pickle 2, signal 1. What a single function needs is imported on its first use.
# `python -X importtime` shows what each costs, `./scripts/bench --rows "import xmp"` the whole.
MAY_IMPORT = (
    *("__future__", "collections.abc", "contextlib", "contextvars", "ctypes", "functools", "gc"),
    *("importlib.machinery", "importlib.util", "itertools", "numbers", "operator", "threading"),
    *("types", "typing"),
)

SHOW_MODULES = """
import sys
before = set(sys.modules)
{}
print(*sorted(set(sys.modules) - before))
"""


def brought_by(code: str) -> set[str]:
    """The modules that a bare interpreter has loaded in addition after this code."""
    return {*in_fresh_interpreter(SHOW_MODULES.format(code)).stdout.split()}


def test_import_brings_a_list_of_modules() -> None:
    brought = brought_by("import xmp")
    allowed = brought_by("import " + ", ".join(MAY_IMPORT))
    assert {name for name in brought if name.partition(".")[0] != "xmp"} == allowed


def test_the_command_line_is_there() -> None:
    in_fresh_interpreter("import xmp.__main__; assert callable(xmp.__main__.main)")


def test_the_first_template_starts_before_the_engine_is_imported(tmp_path: Path) -> None:
    """It comes up while its launcher imports the rest of the engine, dataclasses and all."""
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
