"""The switch for kernel features, with which ``./scripts/test --without`` runs the contract again.

Also what a Python lacks that was built with an older glibc, as many of uv's and conda's.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.stage import Script
from tests.support.waiting import until
from xmp._processes.system import processes

FEATURES = "pidfd,memfd,close_range,subreaper,setsig,pdeathsig,passcred"  # those of the lane

pytestmark = pytest.mark.first_pass

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


WITH_ITS_PARENT = """
import ctypes
from xmp._processes.system import linux
linux.killed_with_parent()
number = ctypes.c_int()
assert ctypes.CDLL(None).prctl(2, ctypes.byref(number)) == 0  # PR_GET_PDEATHSIG: prctl(2)
print(number.value)
"""


@pytest.mark.parametrize(("without", "number"), [("", 9), ("pdeathsig", 0)])
def test_the_kernel_kills_a_process_with_its_parent(
    script: Script, without: str, number: int
) -> None:
    assert script(WITH_ITS_PARENT, env={"XMP_WITHOUT": without}).out == f"{number}\n"


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


def test_off_linux_psutil_says_which_processes_are_zombies(monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.fork() or os._exit(0)
    try:
        until(lambda: processes.is_zombie(child))
        monkeypatch.setattr(sys, "platform", "darwin")
        assert processes.is_zombie(child)
        assert not processes.is_zombie(os.getpid())
    finally:
        os.waitpid(child, 0)
    assert not processes.is_zombie(child), "it is not there at all"
