"""torch_xla 2.9 itself, with a plug-in of another device, under SPMD, and on a TPU slice on GKE."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from xmp._plan import planner
from xmp._words.types import HostFacts, Request

pytestmark = pytest.mark.xla
ROOT = Path(__file__).parent.parent.parent


def run(
    program: str, *options: str, arguments: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """A separate process, since it initialises XLA."""
    path = os.pathsep.join(filter(None, [str(ROOT), env.pop("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(program), *arguments],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **env, "PYTHONPATH": path},
    )  # fmt: skip


def said(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# --- a plug-in -----------------------------------------------------------------------------------

PLUGIN = """
import json, os
from torch_xla.experimental import plugins

class Chip(plugins.DevicePlugin):
    def library_path(self):
        return "/nonexistent/libchip.so"

    def configure_single_process(self):
        self.say("single")

    def configure_multiprocess(self, local_rank, local_world_size):
        self.say("multi", local_rank, local_world_size)

    def say(self, *what):
        names = ("PJRT_DEVICE", "PJRT_LOCAL_PROCESS_COUNT", "RANK", "WORLD_SIZE", "MASTER_ADDR")
        with open(os.environ["SAID"], "a") as file:
            port = os.environ["XLA_COORDINATOR_PORT"].isdigit()
            print(json.dumps([*what, [os.environ[n] for n in names], port]), file=file)
"""

WITH_PLUGIN = """
    import sys, xmp

    def fn(rank):
        return rank

    if __name__ == "__main__":
        try:
            xmp.spawn(fn, nprocs={nprocs}, runtime="pjrt", join=False).results()
        except xmp.ReplicaError as error:
            print(error, file=sys.stderr)
"""


@pytest.mark.parametrize("nprocs", [1, 2])
def test_a_plug_in_configures_its_processes(tmp_path: Path, nprocs: int) -> None:
    """Its library is missing here, which torch_xla reports: nothing falls back to the CPU."""
    (tmp_path / "mychip.py").write_text(PLUGIN)
    info = tmp_path / "mychip-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mychip\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch_xla.plugins]\nmychip = mychip:Chip\n")
    log = tmp_path / "said"
    env = {"PJRT_DEVICE": "MYCHIP", "SAID": str(log), "PYTHONPATH": str(tmp_path)}
    done = run(WITH_PLUGIN.format(nprocs=nprocs), **env)
    assert "/nonexistent/libchip.so" in done.stderr, done.stderr[-3000:]
    lines = sorted(json.loads(line) for line in log.read_text().splitlines())
    host = ["MYCHIP", str(nprocs)]
    if nprocs == 1:
        assert lines == [["single", [*host, "0", "1", "127.0.0.1"], True]]
    else:  # the other one may have been stopped before it came so far
        first = [["multi", i, 2, [*host, str(i), "2", "127.0.0.1"], True] for i in range(2)]
        assert lines
        assert all(line in first for line in lines)


# --- SPMD ----------------------------------------------------------------------------------------

SHARDED = """
    import json, os
    import xmp

    def fn(rank):
        import numpy as np, torch
        import torch_xla, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
        devices = xr.global_runtime_device_count()
        mesh = xs.Mesh(np.arange(devices), (devices,), ("x",))
        value = torch.arange(8.0).to(xmp.device())
        xs.mark_sharding(value, mesh, ("x",))
        return [rank, xmp.world_size(), devices, (value * 2).sum().item()]

    if __name__ == "__main__":
        print(json.dumps(list(xmp.spawn(fn, {call}))[0]))
"""


@pytest.mark.parametrize("call", ["nprocs=1", "start_method='forkserver'"])
def test_under_spmd_one_process_has_all_devices(call: str) -> None:
    env = {"XLA_USE_SPMD": "1", "CPU_NUM_DEVICES": "4", "PJRT_DEVICE": "CPU"}
    done = run(SHARDED.format(call=call), "-W", "ignore", **env)
    assert said(done) == [0, 1, 4, 56.0]


# --- a slice on GKE ------------------------------------------------------------------------------

HOSTS = ["job-0-0.svc", "job-0-1.svc"]
GKE = {
    "TPU_SKIP_MDS_QUERY": "true",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_TOPOLOGY": "2x4",
    "TPU_HOST_BOUNDS": "1,2,1",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
    "TPU_WORKER_HOSTNAMES": ",".join(HOSTS),
}

MASTER = """
    import json, os, sys
    import torch_xla.core.xla_model as xm
    from torch_xla._internal import tpu

    def from_device_0(tensors):  # there is one process here; what task 0's would send
        tensors[0].zero_()

    xm.collective_broadcast = from_device_0
    before, found = dict(os.environ), []
    for variables in json.loads(sys.argv[1]):
        os.environ.clear()
        os.environ.update(before, **variables)
        found.append([tpu.get_worker_ips(), tpu.discover_master_worker_ip()])
    print(json.dumps(found))
"""


def on_the_second_host(env: dict[str, str]) -> dict[str, str]:
    """What a replica on the second host gets."""
    facts = HostFacts(
        address=HOSTS[1],
        env=env,
        tpu={"generation": "v5e", "chips": 4},
        frameworks={"torch": "2.9.1+cpu", "torch_xla": "2.9.0"},
    )
    replica = planner.plan(Request(runtime="pjrt"), facts).hosts[0].replicas[1]
    given = {**{n: v for n, v in env.items() if n not in replica.unset}, **dict(replica.set)}
    return {**given, "PJRT_DEVICE": "CPU"}  # where the tensor is


def test_it_knows_the_hosts_of_its_slice() -> None:
    by_gke = {**GKE, "TPU_WORKER_ID": "1"}
    # The plan adds what keeps torch_xla from asking.
    by_hand = {name: by_gke[name] for name in ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID")}
    given = json.dumps([on_the_second_host(each) for each in (by_gke, by_hand)])
    done = run(MASTER, "-W", "ignore", arguments=(given,), PJRT_DEVICE="CPU")
    assert said(done) == [[HOSTS, HOSTS[0]]] * 2
