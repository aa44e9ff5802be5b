"""Flags and limits of the launcher's interpreter, and programs beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.stage import Python, Script, Stage

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


def test_flags_of_the_interpreter(method: str, python: Python, tmp_path: Path) -> None:
    (tmp_path / "flags.py").write_text(FLAGS)
    options = ["-O", "-X", "utf8", "-W", "ignore::ResourceWarning", "-B"]
    done = python(*options, str(tmp_path / "flags.py"), method)
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


FEW = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
    import os
    import in_script, xmp

    def work(rank):
        return [resource.getrlimit(resource.RLIMIT_NOFILE)[0], "x" * 100_000]

    if __name__ == "__main__":
        method, count = sys.argv[1], int(sys.argv[2])
        results = list(xmp.spawn(work, nprocs=count, runtime="cpu", start_method=method))
        in_script.say(count=len(results), limits=sorted({each[0] for each in results}),
                      own=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("method", "count"), [("forkserver", 100), ("spawn", 12), ("fork", 100)])
def test_few_open_files_allowed(stage: Stage, method: str, count: int) -> None:
    said = stage.run(FEW, method, str(count), timeout=60).said
    assert said == {"count": count, "limits": [256], "own": 256}


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


NO_TEMPLATE = """
    import sys
    import in_script, xmp

    def fn(rank):
        return rank

    if __name__ == "__main__":
        for _ in range(2):
            xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])
        in_script.say(templates=in_script.templates())
"""


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_only_forkserver_starts_a_template(start: str, stage: Stage) -> None:
    assert stage.run(NO_TEMPLATE, start).said["templates"] == []
