"""Flags and limits of the launcher's interpreter, and programs beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from _behaviour import Script, run_script

FLAGS = """
import json, sys, warnings
import xmp

def fn(rank):
    assert False, "asserts are on"

def flags(rank):
    return [sys.flags.optimize, sys.flags.utf8_mode, sys.flags.dev_mode, sys._xoptions,
            sys.warnoptions, sys.flags.dont_write_bytecode, __doc__]

if __name__ == "__main__":
    xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])
    got = list(xmp.spawn(flags, nprocs=2, runtime="cpu", start_method=sys.argv[1]))
    assert got[0] == got[1] == flags(0), (got, flags(0))
    print("fine")
"""


def test_flags_of_the_interpreter(method: str, tmp_path: Path) -> None:
    (tmp_path / "flags.py").write_text(FLAGS)
    options = ["-O", "-X", "utf8", "-W", "ignore::ResourceWarning", "-B"]
    done = run_script([*options, str(tmp_path / "flags.py"), method])
    assert done.out == "fine\n", done


@pytest.mark.parametrize("limit", ["ulimit -n 256", "ulimit -n 1024 -c 0"])
def test_few_descriptors(method: str, script: Script, limit: str) -> None:
    source = """
import resource, sys
import xmp

def fn(rank):
    return resource.getrlimit(resource.RLIMIT_NOFILE)

if __name__ == "__main__":
    for got in xmp.spawn(fn, nprocs=4, runtime="cpu", start_method=sys.argv[1]):
        assert got == resource.getrlimit(resource.RLIMIT_NOFILE), got
    print("fine")
"""
    done = script(source, method, shell_before=limit)
    assert done.out == "fine\n", done


def test_many_replicas_with_few_descriptors(script: Script) -> None:
    source = """
import sys
import xmp

def fn(rank):
    return rank

if __name__ == "__main__":
    for method in ("forkserver", "fork"):
        got = xmp.spawn(fn, nprocs=96, runtime="cpu", start_method=method)
        assert list(got) == list(range(96))
    print("fine")
"""
    done = script(source, shell_before="ulimit -S -n 256", timeout=40)
    assert done.out == "fine\n", done


def test_programs_next_to_each_other(method: str, tmp_path: Path) -> None:
    """Two launchers of one user do not see each other."""
    import subprocess
    import sys

    path = tmp_path / "train.py"
    path.write_text(
        """
import json, sys
import xmp

def fn(rank):
    return rank

if __name__ == "__main__":
    print(json.dumps([list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1]))
                      for _ in range(3)]))
"""
    )
    programs = [
        subprocess.Popen([sys.executable, str(path), method], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for program in programs:
        out, _ = program.communicate(timeout=30)
        assert json.loads(out) == [[0, 1]] * 3
