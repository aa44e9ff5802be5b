"""Settings that an import has read already, what native code sees, and ranks of a second host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import xmp
from tests.support.launching import launch
from tests.support.placed import Placed
from tests.support.stage import Script, Stage

pytestmark = pytest.mark.own_template

IMPORTED = """
import json, os, sys
import jax, numpy, torch
import xmp

def fn(rank):
    return [torch.get_num_threads(), jax.local_device_count(), jax.default_backend(),
            jax.config.jax_platforms]

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    found = {name: [] for name in sys.argv[2:]}
    for threads, devices in (("2", "3"), ("1", "2")):
        os.environ.update(OMP_NUM_THREADS=threads, JAX_NUM_CPU_DEVICES=devices)
        for name in found:
            found[name] += xmp.spawn(fn, nprocs=2, runtime=name, start_method=sys.argv[1])
    print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("start", "runtimes"), [("forkserver", ("jax", "cpu")), ("spawn", ("cpu",))]
)
def test_settings_hold_although_the_modules_that_read_them_are_imported(
    start: str, runtimes: tuple[str, ...], script: Script
) -> None:
    """The script's imports come before its function; a fork has what its launcher has.

    Where JAX is not the runtime nothing calls jax.config.update: the template that has imported it
    must be another.
    """
    found = script(IMPORTED, start, *runtimes, timeout=60).json()
    said = [[2, 3, "cpu", "cpu"]] * 2 + [[1, 2, "cpu", "cpu"]] * 2
    assert found == dict.fromkeys(runtimes, said)


NATIVE = """
import ctypes, json, os, sys
import xmp

NAMES = ("RANK", "MASTER_PORT", "CLOUD_TPU_TASK_ID", "TPU_VISIBLE_CHIPS")
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p

def native(name):
    value = libc.getenv(name.encode())
    return value and value.decode()

def fn(rank):
    return [[native(name), os.environ.get(name)] for name in NAMES]

if __name__ == "__main__":
    for name in NAMES:  # as libtpu and torch_tpu do: os.environ does not see it
        libc.setenv(name.encode(), b"7", 1)
        assert name not in os.environ and native(name) == "7"
    print(json.dumps(list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1]))))
"""


def test_what_native_code_wrote_in_the_launcher_misleads_no_replica(
    method: str, script: Script
) -> None:
    for rank, (own, port, *others) in enumerate(script(NATIVE, method).json()):
        assert own == [str(rank)] * 2
        assert port[0] == port[1] != "7"
        # A fork copies what the plan does not set; a template or an interpreter never had it.
        left = "7" if method == "fork" else None
        assert others == [[left, None]] * 2


def ranks(rank: int) -> tuple[Any, ...]:
    where = (xmp.rank(), xmp.local_rank(), xmp.world_size(), xmp.host_index())
    return rank, where, os.environ["RANK"], os.environ["LOCAL_RANK"]


FIRST_HOST = """
import xmp

def fn(rank):
    pass

if __name__ == "__main__":
    xmp.spawn(fn, nprocs=COUNT, runtime="cpu")
"""


@pytest.fixture
def beside_host_0(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes this process host 1 of a job whose host 0 starts so many replicas."""
    placed = Placed(stage)

    def start(count: int) -> None:
        placed.program(FIRST_HOST.replace("COUNT", str(count)), index=0)
        for name, value in placed.variables(1).items():
            monkeypatch.setenv(name, value)

    return start


def test_a_function_is_given_its_global_rank(
    method: str, beside_host_0: Callable[[int], None]
) -> None:
    beside_host_0(2)
    assert list(launch(method, ranks)) == [
        (2, (2, 0, 4, 1), "2", "0"),
        (3, (3, 1, 4, 1), "3", "1"),
    ]


def test_so_is_one_alone_on_its_host(beside_host_0: Callable[[int], None]) -> None:
    beside_host_0(1)
    results = xmp.spawn(ranks, nprocs=1, runtime="cpu")
    assert dict(results.by_rank) == {1: (1, (1, 0, 2, 1), "1", "0")}


def sessions(rank: int) -> tuple[bool, bool]:
    """Whether it leads its group, and a program that it starts can have a session of its own."""
    command = [sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())"]
    said = subprocess.run(command, capture_output=True, text=True, start_new_session=True).stdout
    with pytest.raises(PermissionError):
        os.setsid()  # setsid(2) refuses every leader of a group
    return os.getpgid(0) == os.getpid(), said == "True\n"


def test_a_replica_leads_its_group_and_its_programs_may_have_sessions(method: str) -> None:
    assert list(launch(method, sessions)) == [(True, True)] * 2


LARGEST = """
import json, resource, sys
import xmp

def largest_file(rank):
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] >> 30

if __name__ == "__main__":
    found, (_, hard) = [], resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (1, 2):  # GiB; the second launch's template was started before the change
        resource.setrlimit(resource.RLIMIT_FSIZE, (size << 30, hard))
        found += xmp.spawn(largest_file, nprocs=2, runtime="cpu", start_method=sys.argv[1])
    print(json.dumps(found))
"""


def test_a_limit_is_the_launchers_of_the_moment(method: str, script: Script) -> None:
    assert script(LARGEST, method).json() == [1, 1, 2, 2]
