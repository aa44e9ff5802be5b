"""Behaviour once more, as on a kernel or platform that has none of the optional features."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _behaviour import Script

FEATURES = "pidfd,memfd,close_range,subreaper,setsig,pdeathsig"
# What needs a subreaper to find orphans, and what does not start a process at all.
LEFT_OUT = "not subreaper and not first_pass and not slow"
FILES = ("outcomes", "state", "contexts", "launcher_ends", "identity")

pytestmark = pytest.mark.first_pass


@pytest.mark.slow
@pytest.mark.no_deadline
def test_the_behaviour_is_the_same_without_kernel_features() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", LEFT_OUT, "-p", "no:cacheprovider"]
    # The default method here; all of them take minutes: XMP_WITHOUT=… pytest tests/engine
    command += ["-k", "forkserver", "--tb=short", "--maxfail=20"]
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in FILES]
    done = subprocess.run(
        [*command, *files],
        env={**os.environ, "XMP_WITHOUT": FEATURES},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, f"without {FEATURES}:\n{done.stdout}"


HELD = """
import os, psutil, sys
import xmp

def waits(rank, event):
    event.wait(30)

if __name__ == "__main__":
    import multiprocessing
    event = multiprocessing.get_context("spawn").Event()
    context = xmp.spawn(waits, (event,), nprocs=2, runtime="cpu", join=False)
    context.pids()
    found = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for name in os.listdir(f"/proc/{process.pid}/fd"):
            try:
                target = os.readlink(f"/proc/{process.pid}/fd/{name}")
            except OSError:
                continue
            found |= {kind for kind in ("pidfd", "memfd") if kind in target}
    event.set()
    assert context.join()
    print(sorted(found))
"""


@pytest.mark.parametrize(("without", "held"), [("", "['memfd', 'pidfd']"), (FEATURES, "[]")])
def test_the_switch_is_seen(script: Script, without: str, held: str) -> None:
    """Else the second pass is a repetition of the first."""
    assert script(HELD, env={"XMP_WITHOUT": without}).out == f"{held}\n"
