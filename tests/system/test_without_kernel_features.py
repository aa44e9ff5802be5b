"""Behaviour once more, as on a kernel or platform that has none of the optional features.

Also what a Python lacks that was built with an older glibc, as many of uv's and conda's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stage import Script

FEATURES = "pidfd,memfd,close_range,subreaper,setsig,pdeathsig,passcred"
# What needs a subreaper to find orphans, and what does not start a process at all.
LEFT_OUT = "not subreaper and not first_pass and not slow"
FILES = (
    *("replica/test_outcomes.py", "replica/test_state.py", "replica/test_identity.py"),
    *("launcher/test_contexts.py", "launcher/test_launcher_ends.py"),
)

pytestmark = pytest.mark.first_pass


@pytest.mark.slow
def test_the_behaviour_is_the_same_without_kernel_features() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", LEFT_OUT, "-p", "no:cacheprovider"]
    # The default method here; all of them take minutes: XMP_WITHOUT=… pytest -m "not first_pass"
    command += ["-k", "forkserver", "--tb=short", "--maxfail=20"]
    files = [str(Path(__file__).parents[1] / name) for name in FILES]
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


WITHOUT_MEMFD_CREATE = """
import os
del os.memfd_create
from xmp._processes.system.linux import memory_file
print(os.readlink(f"/proc/self/fd/{memory_file('of-a-replica')}"))
"""


def test_a_memory_file_needs_no_function_of_pythons(script: Script) -> None:
    assert script(WITHOUT_MEMFD_CREATE).out.startswith("/memfd:of-a-replica")


CLOSES = """
import fcntl, os, resource
from xmp._processes.system.descriptors import close_from
os.closerange = None
for number in (40, 41, 50, 900):
    fcntl.fcntl(0, fcntl.F_DUPFD, number)
close_from(41)
print([name for name in map(int, os.listdir("/proc/self/fd")) if name >= 40])
"""


@pytest.mark.parametrize("without", ["", "close_range"])
def test_descriptors_are_closed_without_a_call_for_each_number(
    script: Script, without: str
) -> None:
    assert script(CLOSES, env={"XMP_WITHOUT": without}).out == "[40]\n"


WITHOUT_PSUTIL = """
import os, sys
sys.modules["psutil"] = None
import xmp
from xmp._processes.system import processes

if __name__ == "__main__":
    assert list(xmp.spawn(abs, nprocs=2, runtime="cpu")) == [0, 1]
    child = os.fork() or os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    print(processes.children(os.getpid()).count(child), processes.is_gone(child))
"""


def test_psutil_is_not_needed_on_linux(script: Script) -> None:
    assert script(WITHOUT_PSUTIL).out == "1 True\n"
