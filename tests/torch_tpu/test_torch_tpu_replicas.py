"""torch_tpu 0.2 in real replicas: only they load it, after the fork, with the plan's variables.

There is no chip here: the plan is that of a host with four, and the first use of a device fails
after torch_tpu has derived libtpu's variables, which C's ``getenv`` then shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch_tpu

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import ctypes, dataclasses, json, os, sys

if sys.argv[1] == "with torch":
    import torch
import xmp
from xmp._calls import host
from xmp._os import probe

NAMES = (
    "CLOUD_TPU_TASK_ID", "TPU_VISIBLE_CHIPS", "TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_PROCESS_PORT", "TPU_PROCESS_ADDRESSES", "TPU_RUNTIME_METRICS_PORTS", "TPU_LOG_DIR",
)

def touched(pid):
    # The mark of a launch names its runtime there, too.
    maps = "".join(line for line in open(f"/proc/{pid}/maps") if ".so" in line)
    return [name for name in ("libtpu", "torch_tpu") if name in maps]

def above(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

def seen(rank):
    supervisor = os.getppid()
    template = above(supervisor)
    others = {"supervisor": touched(supervisor), "template": touched(template)}
    threads = len(os.listdir(f"/proc/{template}/task"))
    import torch
    from torch_tpu._internal.distributed import tpu_distributed

    try:
        tpu_distributed.local_device_coords()
        failure = ""
    except RuntimeError as error:
        failure = str(error)
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    derived = {name: (libc.getenv(name.encode()) or b"").decode() for name in NAMES}
    ours = {name: os.environ.get(name) for name in os.environ if "TPU" in name}
    autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    return [rank, others, threads, failure, derived, ours, autoload, hasattr(torch, "tpu")]

def four_chips():
    tpu = {"generation": "v5e", "chips": 4, "nodes": "vfio"}
    return dataclasses.replace(facts(), tpu=tpu)

if __name__ == "__main__":
    facts, probe.facts = probe.facts, four_chips
    method = sys.argv[2]
    results = xmp.spawn(seen, nprocs=4, runtime="torch_tpu", start_method=method)
    own = [] if "torch" in sys.modules else touched("self")
    try:
        xmp.spawn(seen, nprocs=1, runtime="torch_tpu", backend="auto", start_method=method)
        refused = ""
    except xmp.ReplicaRaised as error:
        refused = str(error)
    print(json.dumps([list(results), own, refused]))
"""


def run(folder: Path, *arguments: str) -> Any:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    clean = {k: v for k, v in os.environ.items() if "TPU" not in k and "RANK" not in k}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env={**clean, "TPU_SKIP_MDS_QUERY": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("launcher", "method"),
    [("without torch", "forkserver"), ("with torch", "forkserver"), ("without torch", "spawn")],
)
def test_only_replicas_load_it_and_they_derive_what_the_plan_means(
    tmp_path: Path, launcher: str, method: str
) -> None:
    replicas, own, refused = run(tmp_path, launcher, method)
    assert own == []
    for rank, others, threads, failure, derived, ours, autoload, registered in replicas:
        if method == "forkserver":
            assert others == {"supervisor": [], "template": []}
            assert threads == 1
        assert "jellyfish" in failure  # no chip here: after the environment was derived
        addresses = ours["TORCH_TPU_SLICEBUILDER_ADDRESSES"]
        assert len(set(addresses.split(","))) == 4
        assert derived == {
            "CLOUD_TPU_TASK_ID": str(rank),
            "TPU_VISIBLE_CHIPS": str(rank),
            "TPU_PROCESS_BOUNDS": "2,2,1",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_PORT": addresses.split(",")[rank].rpartition(":")[2],
            "TPU_PROCESS_ADDRESSES": addresses,
            "TPU_RUNTIME_METRICS_PORTS": ours["TPU_RUNTIME_METRICS_PORTS"],
            "TPU_LOG_DIR": ours["TPU_LOG_DIR"],
        }
        assert autoload in (None, "1")
        assert registered
    assert "tpu_dist" in refused
