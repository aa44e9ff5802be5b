"""A script for torchrun, under torchrun and under ``xmp run``: the same world."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from tests.support.stage import Outcome, Stage
from tests.support.torchrun import torchrun

pytestmark = pytest.mark.peers

PROGRAM = '''
"""After torch's own example of torchrun: a model, gradients averaged, a checkpoint of rank 0."""
import gc, json, os, sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
    for step in range(3):
        batch = torch.full((2, 4), float(rank + step))
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = [round(value, 5) for value in model.module.weight.flatten().tolist()]
    total = torch.tensor(rank + 1.0)
    dist.all_reduce(total)
    ids = [None] * size
    dist.all_gather_object(ids, os.environ["TORCHELASTIC_RUN_ID"])
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
             "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE",
             "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "OMP_NUM_THREADS",
             "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    found = {name: os.environ[name] for name in names}
    text = json.dumps({
        "weights": weights, "total": total.item(), "elastic": dist.is_torchelastic_launched(),
        "one id": len(set(ids)) == 1 and ids[0] != "none", "argv": sys.argv, "file": __file__,
        "error file": os.path.basename(os.environ["TORCHELASTIC_ERROR_FILE"]),
        "path": sys.path[0], "variables": found, "threads": torch.get_num_threads(),
    })
    print(text + "\\n", end="", flush=True)
    dist.destroy_process_group()


main()
# DistributedDataParallel's cycles keep the group until the interpreter ends, and there a thread of
# gloo aborts the process (github.com/pytorch/pytorch/pull/179291), which torchrun starts again.
gc.collect()
'''


def lines(done: Outcome) -> list[dict[str, Any]]:
    assert done.code == 0, f"{done.out}\n{done.err}"
    found = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda each: int(each["variables"]["RANK"]))


def test_a_program_has_the_same_world_as_under_torchrun(stage: Stage) -> None:
    stage.write(PROGRAM, "train.py")
    program = ("--max-restarts=3", "train.py", "0.1")
    under = torchrun(stage.python, *program)
    ours = stage.python(
        "-m", "xmp", "run", "--standalone", "--nproc-per-node=2", *program, timeout=60
    )
    assert len(lines(ours)) == 2
    assert lines(ours) == lines(under)
    stage.gone()


OWN_PORT = """
import os, random, socket, time
import torch.distributed as dist
with socket.socket() as free:
    if os.environ["RANK"] == "0":
        # None that Linux gives to a socket which asks for any, once this one is closed.
        free.bind(("127.0.0.1", random.randrange(20000, 30000)))
        open("port.part", "w").write(str(free.getsockname()[1]))
        os.rename("port.part", "port")
while not os.path.exists("port"):
    time.sleep(0.01)
os.environ["MASTER_PORT"] = open("port").read()
dist.init_process_group("gloo")
print(dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


def test_a_script_with_a_port_of_its_own_forms_its_group_there(stage: Stage) -> None:
    """Under torchrun it hangs: every rank is a client there of a store that nothing serves."""
    stage.write(OWN_PORT, "train.py")
    done = stage.python("-m", "xmp", "run", "-n", "2", "train.py", timeout=60)
    assert (done.code, done.out) == (0, "2\n2\n"), done.err


def test_a_program_without_python_forms_its_group(stage: Stage) -> None:
    stage.write(PROGRAM, "train.py")
    run = ("-m", "xmp", "run", "-n", "2", "--no-python")
    done = stage.python(*run, sys.executable, "train.py", "0.1", timeout=60)
    assert [each["total"] for each in lines(done)] == [3.0, 3.0]
    stage.gone()


AGAIN = """
import torch.distributed as dist
for _ in range(3):
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
print("done", flush=True)
"""


def test_a_script_may_form_its_group_again(stage: Stage) -> None:
    """Under torchrun it may hang: its agent's store has the keys of the group before (2.13)."""
    stage.write(AGAIN, "train.py")
    done = stage.python("-m", "xmp", "run", "-n", "2", "train.py", timeout=60)
    assert (done.code, done.out) == (0, "done\ndone\n"), done.err


READY = """
import os
import torch.distributed as dist
assert dist.is_initialized()
import xmp
print(xmp.rank(), dist.get_backend(), xmp.all_reduce(1), xmp.replica().local_world_size, flush=True)
"""


@pytest.mark.parametrize("count", [1, 2])
def test_the_group_is_ready_where_it_is_asked_for(stage: Stage, count: int) -> None:
    stage.write(READY, "train.py")
    run = ("-m", "xmp", "run", "-n", str(count), "--backend", "gloo", "train.py")
    done = stage.python(*run, timeout=60)
    assert done.code == 0, done.err
    expected = [f"{rank} gloo {count} {count}" for rank in range(count)]
    assert sorted(done.out.splitlines()) == expected


RESTARTED = """
import os, sys
import xmp
names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
print(*(os.environ[name] for name in names), xmp.restart_count(), flush=True)
sys.exit(xmp.restart_count() < 2 and os.environ["RANK"] == "0")
"""


@pytest.mark.failing
def test_restarts_are_counted_as_torchrun_counts_them(stage: Stage) -> None:
    stage.write(RESTARTED, "train.py")
    done = stage.python("-m", "xmp", "run", "-n", "1", "--max-restarts", "2", "train.py")
    assert (done.code, done.out.splitlines()) == (0, ["0 2 0", "1 2 1", "2 2 2"]), done.err


RECORDED = """
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("no such label")

try:
    main()
except ValueError:
    os._exit(3)
"""


@pytest.mark.failing
def test_what_record_writes_is_the_error(stage: Stage) -> None:
    stage.write(RECORDED, "train.py")
    agents = stage.folder / "termination-log"
    run = ("-m", "xmp", "run", "-n", "1", "--max-restarts", "0", "train.py")
    done = stage.python(*run, env={"TORCHELASTIC_ERROR_FILE": str(agents)}, timeout=60)
    assert done.code == 3
    slow = "xmp: the start took "  # where the machine is busy
    first, *others = [line for line in done.err.splitlines() if not line.startswith(slow)]
    assert first.endswith(
        " recorded ValueError: no such label, then ended with exit code 3 [XMP-R02]"
    )
    assert '    raise ValueError("no such label")' in others
    said = json.loads(agents.read_text())["message"]
    assert (said["message"], said["errorCode"]) == ("ValueError: no such label", 3)
    assert 'raise ValueError("no such label")' in said["extraInfo"]["py_callstack"]


HOSTS = """
import json, os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(total)
names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RUN_ID")
print(json.dumps({"total": total.item(), **{n: os.environ[n] for n in names}}) + "\\n", end="")
dist.destroy_process_group()
"""


def test_two_hosts_are_one_run(stage: Stage) -> None:
    stage.write(HOSTS, "train.py")
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = str(free.getsockname()[1])
    env = {"NNODES": "2", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": port}
    run = (sys.executable, "-m", "xmp", "run", "-n", "2", "--local-ranks-filter", "1", "train.py")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    hosts = [stage.start_command(*run, env={**env, "NODE_RANK": n}, **pipes) for n in ("0", "1")]
    said = [stage.outcome(host, 60) for host in hosts]
    assert [each.code for each in said] == [0, 0], said
    found = [json.loads(each.out) for each in said]  # local rank 1 of each
    assert [each["RANK"] for each in found] == [each["ROLE_RANK"] for each in found] == ["1", "3"]
    assert [each["GROUP_RANK"] for each in found] == ["0", "1"]
    assert [each["total"] for each in found] == [10.0, 10.0]
    assert {each["TORCHELASTIC_RUN_ID"] for each in found} == {f"127.0.0.2:{port}"}
