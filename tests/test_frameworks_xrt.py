"""Legacy torch_xla in real replicas, with a stand-in of its shape that records what it is asked.

torch_xla up to 2.0 cannot be installed any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

XLA_MODEL = '''
"""The functions of torch_xla 1.6's xla_model that its spawn and our collectives call."""
import os

CALLS = []


def xrt_world_size(defval=1):
    CALLS.append(["xrt_world_size"])
    return int(os.environ.get("XRT_SHARD_WORLD_SIZE", defval))


def xla_device(n=None, devkind=None):
    CALLS.append(["xla_device", os.environ["XRT_MULTI_PROCESSING_DEVICE"]])
    return "xla:1"


def set_replication(device, devices):
    CALLS.append(["set_replication", device, devices])


def rendezvous(tag, payload=b"", replicas=[]):
    """Every replica brings the same here: nobody else is asked."""
    CALLS.append(["rendezvous", tag])
    return [payload] * xrt_world_size()


def all_reduce(reduce_type, inputs, scale=1.0, groups=[]):
    CALLS.append(["all_reduce", reduce_type])
    for each in inputs:
        each.mul_(xrt_world_size())
'''

PROGRAM = """
import json, os, sys
import xmp

def seen(rank):
    import torch_xla.core.xla_model as xm
    names = ("XRT_SHARD_ORDINAL", "XRT_SHARD_WORLD_SIZE", "XRT_LOCAL_WORKER", "XRT_TPU_CONFIG")
    calls = list(xm.CALLS)
    xmp.barrier()
    after = xm.CALLS[len(calls):]
    return [rank, calls, [os.environ.get(n) for n in names], after, str(xmp.device())]

def raises(rank):
    if rank == 1:
        raise ValueError("the second one\\nhas two lines")
    import signal
    signal.pause()

def leaves(rank):
    raise SystemExit(3)

if __name__ == "__main__":
    what, nprocs = sys.argv[1], int(sys.argv[2])
    context = xmp.spawn(globals()[what], nprocs=nprocs, join=False)
    try:
        print(json.dumps(["", *context.results()]))
    except xmp.ReplicaError as error:
        cause = error.__cause__
        codes = [process.exitcode for process in context.processes]
        print(json.dumps([type(error).__name__, error.rank, repr(cause), codes]))
"""


@pytest.fixture
def old_torch_xla(tmp_path: Path) -> Path:
    """A folder to import the stand-in from, with what says that it is 1.6."""
    package = tmp_path / "torch_xla" / "core"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "xla_model.py").write_text(XLA_MODEL)
    about = tmp_path / "torch_xla-1.6.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_xla\nVersion: 1.6\n")
    return tmp_path


def run(folder: Path, what: str, nprocs: int) -> tuple[Any, str]:
    """What the program prints, and its standard error."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
        "XRT_TPU_CONFIG": "tpu_worker;0;127.0.0.1:8470",
        "TPU_NUM_DEVICES": "2",
    }
    done = subprocess.run(
        [sys.executable, str(program), what, str(nprocs)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_device_and_then_replication(old_torch_xla: Path) -> None:
    (_, *replicas), _ = run(old_torch_xla, "seen", 2)
    config = "tpu_worker;0;127.0.0.1:8470"
    for rank, (given, calls, environment, after, device) in enumerate(replicas):
        assert given == rank
        assert calls == [
            ["xrt_world_size"],
            ["xla_device", f"TPU:{rank}"],
            ["set_replication", "xla:1", ["xla:1"]],
        ]
        assert environment == [str(rank), "2", "tpu_worker:0", config if rank == 0 else None]
        assert after[0][0] == "rendezvous"
        assert device == "xla:1"


def test_alone_there_is_no_replication(old_torch_xla: Path) -> None:
    (_, replica), _ = run(old_torch_xla, "seen", 1)
    assert replica[1] == [["xrt_world_size"]]


def test_an_exception_is_two_messages_and_exit_code_17(old_torch_xla: Path) -> None:
    (kind, rank, cause, codes), err = run(old_torch_xla, "raises", 2)
    assert (kind, rank) == ("ReplicaRaised", 1)
    assert cause == repr(ValueError("the second one\nhas two lines"))
    assert codes[1] == 17
    first, _, rest = err.partition("Exception in device=TPU:1: the second one\nhas two lines\n")
    assert "Exception in device" not in first
    assert rest.startswith("Traceback (most recent call last):\n")
    assert 'raise ValueError("the second one\\nhas two lines")' in rest
    assert "Exception in device=TPU:0" not in err


def test_leaving_is_no_exception(old_torch_xla: Path) -> None:
    (kind, _, _, codes), err = run(old_torch_xla, "leaves", 1)
    assert kind == "ReplicaDied"
    assert codes == [3]
    assert "Exception in device" not in err
