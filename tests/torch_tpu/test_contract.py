"""torch_tpu 0.2 itself: its launcher sets our values, and a replica derives what the plan means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from xmp._plan import planner
from xmp._words.types import HostFacts, JobPlan, Request

pytestmark = pytest.mark.torch_tpu

FRAMEWORKS = {"torch": "2.13.0+cpu", "torch_tpu": "0.2.0", "libtpu": "0.0.51"}
CHIPS = {"0x005e": "v4", "0x0062": "v5p", "0x0063": "v5e", "0x006f": "v6e", "0x0076": "7x"}


def host(generation: str, chips: int, **given: Any) -> HostFacts:
    return HostFacts(
        tpu={"generation": generation, "chips": chips, "nodes": "vfio"},
        frameworks=FRAMEWORKS,
        **given,
    )


def plan(facts: HostFacts, **request: Any) -> JobPlan:
    return planner.plan(Request(runtime="torch_tpu", **request), facts)


def run(program: str, env: dict[str, str]) -> Any:
    """What ``program`` prints last, as JSON, in a process without inherited TPU words."""
    clean = {k: v for k, v in os.environ.items() if "TPU" not in k and "RANK" not in k}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**clean, **env},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


PARENT = """
import json, os
from torch_tpu._internal.utils import hardware
from torch_tpu._internal.distributed import distributed

found = {}
for device, count in json.loads(os.environ["CASES"]):
    table = hardware._TOPOLOGY_BY_TPU_PCI_DEVICE_ID[device]
    found[f"{device} {count}"] = table.get(count)
hardware.get_tpu_device_count = lambda: 8
table = hardware._TOPOLOGY_BY_TPU_PCI_DEVICE_ID["0x0063"]
hardware.get_tpu_topology = lambda count=None: table[count or 8]
distributed.set_tpu_launch_env(nproc_per_node=8)
own = {name: value for name, value in os.environ.items() if name.startswith("TORCH_TPU")}
print(json.dumps([found, own]))
"""


def test_the_parent_step_gives_the_values_of_our_plan() -> None:
    # Hosts of v4 and v5p have four chips: the library's eight of them are two hosts.
    counts = {"7x": (2, 4, 8), "v4": (1, 2, 4), "v5p": (1, 2, 4)}
    cases = [(d, n) for d, g in CHIPS.items() for n in counts.get(g, (1, 4, 8))]
    topologies, own = run(PARENT, {"CASES": json.dumps(cases)})
    for device, count in cases:
        generation = CHIPS[device]
        made = plan(host(generation, 4 if generation in counts else 8), nprocs=count)
        ours = dict(made.hosts[0].replicas[0].set)["TORCH_TPU_TOPOLOGY"]
        assert ours == topologies[f"{device} {count}"], (generation, count)
    ours = dict(plan(host("v5e", 8)).hosts[0].replicas[3].set)
    assert ours["TORCH_TPU_TOPOLOGY"] == own["TORCH_TPU_TOPOLOGY"]
    listed = own["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
    theirs = [entry.partition(":")[0] for entry in listed]
    entries = ours["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
    assert [entry.partition(":")[0] for entry in entries] == theirs
    assert len({entry.partition(":")[2] for entry in entries}) == 8
    assert set(own) <= set(ours)


CHILD = """
import ctypes, json, os
import torch
from torch_tpu._internal.distributed import tpu_distributed
try:
    tpu_distributed.local_device_coords()
except RuntimeError as error:
    assert "jellyfish" in str(error), error  # no chip here: after the environment was derived
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
names = json.loads(os.environ["NAMES"])
print(json.dumps({name: (libc.getenv(name.encode()) or b"").decode() for name in names}))
"""


def gke(worker: int) -> HostFacts:
    env = {
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "TPU_TOPOLOGY": "4x4",
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": "t-0.svc,t-1.svc,t-2.svc,t-3.svc",
        "TPU_SKIP_MDS_QUERY": "true",
    }
    return host("v5e", 4, env=env)


@pytest.mark.parametrize(
    ("facts", "request_", "local", "meant"),
    [
        (
            host("v5e", 4),
            {},
            1,
            {"CLOUD_TPU_TASK_ID": "1", "TPU_VISIBLE_CHIPS": "1", "TPU_PROCESS_BOUNDS": "2,2,1"},
        ),
        (
            host("v5e", 8),
            {"devices": (4, 5, 6, 7)},
            2,
            {"CLOUD_TPU_TASK_ID": "2", "TPU_VISIBLE_CHIPS": "6", "TPU_PROCESS_BOUNDS": "2,2,1"},
        ),
        (
            host("7x", 4),
            {},
            7,
            {
                "TPU_VISIBLE_CHIPS": "7",
                "TPU_PROCESS_BOUNDS": "2,2,1,2",
                "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1,1",
            },
        ),
        (
            gke(2),
            {},
            3,
            {"CLOUD_TPU_TASK_ID": "11", "TPU_VISIBLE_CHIPS": "3", "TPU_PROCESS_BOUNDS": "4,4,1"},
        ),
        (host("v6e", 1), {"nprocs": 1}, 0, {"TPU_VISIBLE_CHIPS": "0"}),
    ],
    ids=["four chips", "half a host", "cores", "a host of a slice", "one chip"],
)
def test_a_replica_derives_what_the_plan_means(
    facts: HostFacts, request_: dict[str, Any], local: int, meant: dict[str, str]
) -> None:
    replica = plan(facts, **request_).hosts[0].replicas[local]
    ours = dict(replica.set)
    addresses = ours["TORCH_TPU_SLICEBUILDER_ADDRESSES"]
    meant = {
        **meant,
        "TPU_PROCESS_ADDRESSES": addresses,
        "TPU_PROCESS_PORT": addresses.split(",")[replica.rank].rpartition(":")[2],
        "TPU_RUNTIME_METRICS_PORTS": ours["TPU_RUNTIME_METRICS_PORTS"],
    }
    skip = {"TPU_SKIP_MDS_QUERY": "1", "NAMES": json.dumps(sorted(meant))}
    assert run(CHILD, {**ours, **skip}) == meant
