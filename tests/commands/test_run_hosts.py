"""``xmp run`` on several hosts that its options name: torchrun's words, and what torchrun does."""

from __future__ import annotations

import json
import platform
import re
import socket
from typing import Any

import pytest

from tests.support.placed import Placed
from tests.support.stage import Stage

pytestmark = pytest.mark.hosts


@pytest.fixture
def placed(stage: Stage) -> Placed:
    return Placed(stage)


def options(placed: Placed, index: int, dash: str = "-") -> list[str]:
    where = {
        "nnodes": str(placed.hosts), f"node{dash}rank": str(index),
        f"master{dash}addr": placed.ADDRESS, f"master{dash}port": str(placed.port),
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in where.items()]


def run(placed: Placed, *words: str, dash: str = "-", env: dict[str, str] | None = None) -> None:
    """Start the command on every host."""
    for index in range(placed.hosts):
        placed.command(index, "run", *options(placed, index, dash), *words, env=env)


def lines(placed: Placed) -> list[list[Any]]:
    """What the replicas of each host printed, as JSON and in order of the ranks."""
    found = placed.ended(120)
    assert {each.code for each in found} == {0}, [each.err for each in found]
    # Gloo under JAX prints "[Gloo] Rank 0 is connected …".
    return [sorted(map(json.loads, re.findall(r"^\[\d.*", e.out, re.MULTILINE))) for e in found]


DDP = """
import json, os
import torch, xmp
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = xmp.data_parallel(torch.nn.Linear(4, 2))  # torch's DistributedDataParallel
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).sum().backward()
    optimizer.step()
weight = sum(p.sum().item() for p in model.parameters())
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
print(json.dumps([*(int(os.environ[n]) for n in names), round(weight, 6)]) + "\\n", end="")
dist.destroy_process_group()
"""


def test_a_script_of_torch_trains_on_both(placed: Placed) -> None:
    placed.stage.write(DDP, "train.py")
    scheduler = {"SLURM_STEP_NODELIST": "n[1-4]", "SLURM_PROCID": "3", "SLURM_NODEID": "3"}
    run(placed, "-n", "2", "train.py", env=scheduler)  # the options count more
    first, second = lines(placed)
    weight = first[0][-1]
    assert first == [[0, 0, 4, 2, 0, weight], [1, 1, 4, 2, 0, weight]]
    assert second == [[2, 0, 4, 2, 1, weight], [3, 1, 4, 2, 1, weight]]


JAX = """
import json
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
seen = multihost_utils.process_allgather(jnp.array([jax.process_index()])).ravel().tolist()
print(json.dumps([jax.process_index(), jax.process_count(), jax.device_count(), seen]))
"""


def test_a_script_of_jax_sees_the_devices_of_both(placed: Placed) -> None:
    placed.stage.write(JAX, "train.py")
    run(placed, "-n", "2", "--runtime", "jax", "train.py")
    world = [0, 1, 2, 3]
    assert lines(placed) == [
        [[0, 4, 4, world], [1, 4, 4, world]],
        [[2, 4, 4, world], [3, 4, 4, world]],
    ]


ENDS = """
import os, pathlib, sys
import in_script
from waiting import until

here = pathlib.Path(os.environ["FOLDER"])
(here / f"in-{os.environ['RANK']}").touch()
until(lambda: len(list(here.glob("in-*"))) == int(os.environ["WORLD_SIZE"]))
if os.environ["RANK"] == sys.argv[1]:
    sys.exit(int(sys.argv[2]))
in_script.never_returns()
"""


def test_the_status_is_that_of_the_rank_that_failed_on_whichever_host(placed: Placed) -> None:
    placed.stage.write(ENDS, "train.py")
    run(placed, "-n", "2", "--runtime=cpu", "--grace", "1", "train.py", "3", "7", dash="_")
    for outcome in placed.ended(60):
        assert outcome.code == 7, outcome.err
        assert "rank 3" in outcome.err
        assert f" on host 1 ({platform.node()}))" in outcome.err


def test_one_replica_a_host_ends_with_the_other_host(placed: Placed) -> None:
    """Although ``-n 1`` alone would run the script in xmp's own process."""
    placed.stage.write(ENDS, "train.py")
    run(placed, "-n", "1", "--runtime=cpu", "train.py", "0", "5")
    for outcome in placed.ended(60):
        assert outcome.code == 5, outcome.err
        assert "rank 0" in outcome.err


@pytest.mark.parametrize("here", [0, 1])
def test_a_host_that_does_not_come_is_named(placed: Placed, here: int) -> None:
    placed.stage.write("print('ran')", "train.py")
    where = options(placed, here)
    placed.command(here, "run", *where, "-n", "2", "--start-timeout", "2", "train.py")
    [outcome] = placed.ended()
    assert (outcome.code, outcome.out) == (1, "")
    assert f"host {1 - here}" in outcome.err
    assert "has not come" in outcome.err


def test_hosts_with_another_number_of_replicas(placed: Placed) -> None:
    placed.stage.write("print('ran')", "train.py")
    for index in range(2):
        placed.command(index, "run", *options(placed, index), "-n", str(index + 1), "train.py")
    for outcome in placed.ended():
        assert (outcome.code, outcome.out) == (2, ""), outcome.err
        assert "nprocs is 1 on host 0" in outcome.err


def test_options_complete_variables(placed: Placed) -> None:
    """Torchrun's own variables too: ``PET_NODE_RANK`` stands for ``--node-rank``."""
    placed.stage.write(JOINS, "train.py")
    for index in range(2):
        env = {
            "NNODES": "2", "PET_NODE_RANK": str(index), "PET_MASTER_ADDR": placed.ADDRESS,
            "MASTER_PORT": str(placed.port),
        }  # fmt: skip
        placed.command(index, "run", "-n", "1", "--runtime=cpu", "train.py", env=env)
    assert lines(placed) == [[[0, 0, 2, 0]], [[1, 1, 2, 0]]]


# --- torchrun's rendezvous ------------------------------------------------------------------------

JOINS = """
import json, os, time
from pathlib import Path
names = ("RANK", "GROUP_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
rank, _, world, attempt = found = [int(os.environ[name]) for name in names]
print(json.dumps(found), flush=True)
Path(os.environ["FOLDER"], f"in-{attempt}-{rank}").touch()
while len(list(Path(os.environ["FOLDER"]).glob(f"in-{attempt}-*"))) < world:
    time.sleep(0.01)
if rank == 2 and attempt == 0:
    raise OSError("the first attempt fails")
"""


def join(placed: Placed, *words: str) -> None:
    """The command of torch's multi-node tutorial, the same on every host."""
    endpoint = f"--rdzv-endpoint={placed.ADDRESS}:{placed.port}"
    for index in range(placed.hosts):
        command = (f"--nnodes={placed.hosts}", "--nproc-per-node=1", "--rdzv-backend=c10d")
        placed.command(index, "run", *command, "--rdzv-id=9", endpoint, *words)


def test_hosts_without_an_index_join_and_keep_it_over_restarts(stage: Stage) -> None:
    placed = Placed(stage, 3)
    stage.write(JOINS, "train.py")
    join(placed, "--runtime=cpu", "--max-restarts=1", "train.py")
    hosts = lines(placed)
    assert sorted(hosts) == [[[n, n, 3, 0], [n, n, 3, 1]] for n in range(3)]


def test_that_there_is_no_host_0_is_one_error(placed: Placed) -> None:
    placed.stage.write("print('ran')", "train.py")
    carrier = placed.port + 1000 if placed.port + 1000 < 65536 else placed.port - 1000
    with socket.socket() as other:  # has the port, and is no launcher of xmp's
        other.bind((placed.ADDRESS, carrier))
        other.listen()
        placed.hosts = 1
        endpoint = f"--rdzv-endpoint={placed.ADDRESS}:{placed.port}"
        words = ("--nnodes=2", "-n", "1", "--start-timeout=3", endpoint, "train.py")
        placed.command(0, "run", *words)
        [outcome] = placed.ended()
    assert (outcome.code, outcome.out) == (1, "")
    assert f"host 0, the coordinator at {placed.ADDRESS} port {carrier}, has not come within" in (
        outcome.err
    )
    assert "Host 0 is the host of the job that can bind the port of --rdzv-endpoint" in outcome.err
    assert "is already served by another program" in outcome.err
