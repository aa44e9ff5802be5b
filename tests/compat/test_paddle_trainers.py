"""Programs of torch whose processes Paddle's launcher, or one like it, has started."""

from __future__ import annotations

import json
import socket
import sys
from types import ModuleType

import pytest

from tests.support.stage import Stage
from xmp.plugins.paddle._environment import paddle_runs

ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"

FORKS = """
import json, os, sys
import torch
import torch.distributed

program, trainers = sys.argv[1], json.loads(sys.argv[2])
for place, variables in enumerate(trainers):
    if os.fork() == 0:
        os.environ.update(variables)
        os.dup2(os.open(f"said-{place}", os.O_WRONLY | os.O_CREAT), 1)
        exec(compile(open(program).read(), program, "exec"))
        break  # and ends as an interpreter does
else:
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in trainers]
    sys.exit(str(codes) if any(codes) else 0)
"""
"""All trainers of all launchers; to import torch is most of what each would cost."""
TRAINER = """
import atexit, json, os, sys, weakref
import torch
import torch.distributed
import xmp
import xmp.compat.paddle as dist

def spawned():
    try:
        dist.spawn(print, nprocs=2)
    except xmp.PlanError as error:
        return str(error)

def at_the_end():
    said["left"] = [torch.distributed.is_initialized(), formed() is None]
    print(json.dumps(said), flush=True)
    os._exit(0)  # threads of gloo may abort the end of the interpreter: tests/support/torchrun.py

atexit.register(at_the_end)
before = [dist.get_rank(), dist.get_world_size(), xmp.rank(), xmp.world_size()]
apart = spawned()
model = torch.nn.Linear(2, 1)
try:
    dist.sync_params_buffers(model)
except RuntimeError as error:
    refused = str(error)
group = dist.init_parallel_env()
assert dist.init_parallel_env() is group
assert spawned() == apart
total = torch.tensor([dist.get_rank() + 1.0])
torch.distributed.all_reduce(total)
dist.sync_params_buffers(model, group, src_rank=1)
weights = xmp.all_gather(model.weight.detach().tolist())
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
said = {
    "before": before, "apart": apart, "refused": refused, "total": total.item(),
    "name": group.name(),
    "xmp": [xmp.rank(), xmp.world_size(), xmp.local_rank(), xmp.local_world_size()],
    "sum": xmp.all_reduce(1, group=group), "equal": weights[0] == weights[1],
    "variables": [os.environ[name] for name in names],
}
formed = weakref.ref(group)
cycle = [group]
cycle.append(cycle)
del cycle, group
xmp.barrier()
"""


MEETINGS = ("MASTER_ADDR", "PADDLE_MASTER", ENDPOINTS, "[::1]")


def given_by(meeting: str, ports: list[int]) -> dict[str, str]:
    """What the launcher sets in both of its trainers."""
    host = "[::1]" if meeting == "[::1]" else "127.0.0.1"
    endpoints = f"{host}:{ports[0]},{host}:{ports[1]}"
    given = {"PADDLE_TRAINERS_NUM": "2", ENDPOINTS: endpoints}
    if meeting == "PADDLE_MASTER":
        given["PADDLE_MASTER"] = f"{host}:{ports[2]}"
    if meeting == "MASTER_ADDR":
        given |= {"MASTER_ADDR": host, "MASTER_PORT": str(ports[2]), "PADDLE_MASTER": "nowhere:1"}
    return given


@pytest.fixture(scope="module")
def trainers(shared_stage: Stage) -> dict[str, list[str]]:
    """What the two trainers of each launcher wrote."""
    ports = free_ports(9, "127.0.0.1")
    of = dict(zip(MEETINGS, (ports[:3], ports[3:6], ports[6:], free_ports(3, "[::1]"))))
    variables = [
        {**given_by(meeting, of[meeting]), "PADDLE_TRAINER_ID": str(rank)}
        for meeting in MEETINGS
        for rank in (0, 1)
    ]
    forks, program = shared_stage.write(FORKS), shared_stage.write(TRAINER)
    done = shared_stage.python(
        str(forks), str(program), json.dumps(variables), cwd=shared_stage.folder, timeout=120
    )
    assert done.code == 0, done.err
    said = [(shared_stage.folder / f"said-{place}").read_text() for place in range(8)]
    return {meeting: said[2 * n : 2 * n + 2] for n, meeting in enumerate(MEETINGS)}


@pytest.mark.parametrize("meeting", MEETINGS)
def test_trainers_that_paddles_launcher_started(
    meeting: str, trainers: dict[str, list[str]]
) -> None:
    host = "[::1]" if meeting == "[::1]" else "127.0.0.1"
    for rank, said in enumerate(trainers[meeting]):
        found = json.loads(said)
        print(meeting, rank, found)
        assert found.pop("refused").startswith("sync_params_buffers needs the 2 trainers connected")
        assert found.pop("apart").startswith("Paddle's launcher has started this process for one")
        assert found == {
            "before": [rank, 2, rank, 2],
            "left": [False, True],
            "total": 3.0,
            "name": "gloo",
            "xmp": [rank, 2, rank, 2],
            "sum": 2,
            "equal": True,
            "variables": [str(rank), "2", str(rank), "2", host.strip("[]")],
        }


def free_ports(count: int, host: str) -> list[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = [socket.socket(family) for _ in range(count)]
    for each in held:
        each.bind((host.strip("[]"), 0))
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


@pytest.mark.parametrize(
    ("loaded", "is_started_by_paddle", "expected"),
    [
        ((), True, False),
        (("torch",), True, False),
        (("paddle",), False, True),
        (("paddle", "torch"), False, False),
        (("paddle", "torch"), True, True),
    ],
)
def test_which_framework_it_is_outside_of_replicas(
    loaded: tuple[str, ...],
    is_started_by_paddle: bool,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("torch", "paddle", "torch.distributed"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        if name in loaded:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delenv("PADDLE_TRAINER_ID", raising=False)
    if is_started_by_paddle:
        monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    assert paddle_runs() is expected
