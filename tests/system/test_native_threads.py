"""The names of native threads: real libraries that start some."""

from __future__ import annotations

import pytest

from tests.support.stage import Script

PROGRAM = """
import sys, time

def numpy_pool():
    import numpy
    a = numpy.ones((500, 500))
    a @ a
    return a

def torch_pool():
    import torch
    torch.set_num_threads(2)
    return torch.ones(1 << 20).sum()

def zeromq():
    import zmq
    return zmq.Context().socket(zmq.PUB)

if __name__ == "__main__":
    from xmp._processes.system import fork_safety
    kept = globals()[sys.argv[1]]()
    end = time.monotonic() + 10
    while time.monotonic() < end:  # a thread that has just started still runs
        names = fork_safety.native_threads(True)
        if any(sys.argv[2] in name for name in names):
            break
        time.sleep(0.01)
    print(names)
"""


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("numpy_pool", "of a native library"),
        ("torch_pool", "of a native library"),
        ("zeromq", "'ZMQbg/Reaper' (native)"),
    ],
)
def test_the_thread_of_a_library_is_seen(start: str, name: str, script: Script) -> None:
    done = script(PROGRAM, start, name, timeout=60)
    assert name in done.out, done.out + done.err


PYARROW = """
import os, pandas, pyarrow
from xmp._processes.system import fork_safety

if __name__ == "__main__":
    tasks = os.listdir("/proc/self/task")
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks]
    print("jemalloc_bg_thd" in names, [n for n in fork_safety.native_threads() if "arrow" in n])
"""


def test_the_thread_of_pyarrows_allocator_does_not_forbid_a_fork(script: Script) -> None:
    assert script(PYARROW, timeout=60).out == "True []\n"


TORCH_STORE = """
import xmp
from torch.distributed import TCPStore
from xmp._processes.system import fork_safety

def joins(index):
    TCPStore("127.0.0.1", store.port, None, False).set(f"rank{index}", "here")

if __name__ == "__main__":
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    for beside_python in (True, False):
        print([n for n in fork_safety.native_threads(beside_python) if "store" in n])
    xmp.start_processes(joins, nprocs=2, start_method="fork")
    print(store.get("rank0"), store.get("rank1"))
"""


def test_a_launcher_that_serves_torchs_store_may_fork(script: Script) -> None:
    """As torch's elastic agent does; elsewhere that thread forbids a fork."""
    here, elsewhere, joined = script(TORCH_STORE, timeout=60).out.splitlines()
    assert here == "[]"
    assert elsewhere == "[\"'pt_tcpstore_uv' (native)\"]"
    assert joined == "b'here' b'here'"
