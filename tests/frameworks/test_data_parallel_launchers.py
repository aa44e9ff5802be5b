"""``data_parallel`` in every way of starting replicas, and what a launch leaves in its process."""

from __future__ import annotations

import json
import sys

import pytest

import xmp
from tests.support.frameworks import ddp_replicas, replicas
from tests.support.stage import Stage

STEP = '''
import json, sys
import torch._dynamo  # as DDP does: here, it is once for all replicas
import xmp


def step():
    """The gradients of one step, where each replica has another part of the batch."""
    torch.manual_seed(0)
    model = xmp.data_parallel(torch.nn.Linear(4, 1))
    x = torch.full((2, 4), float(xmp.rank() + 1))
    model(x).sum().backward()
    return model.module.weight.grad.flatten().tolist()


def fn(rank):
    return step()
'''
WANTED = [3.0] * 4  # the mean of 2 and 4: two rows of ones, and of twos
SCRIPT = f"""{STEP}
xmp.init_process_group()
sys.stdout.write(json.dumps(step()) + "\\n")
"""


def found(text: str) -> list[list[float]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("[")]


def test_under_xmp_run(stage: Stage) -> None:
    script = stage.write(SCRIPT, "step.py")
    done = stage.python("-m", "xmp", "run", "-n", "2", "--runtime", "cpu", str(script), timeout=90)
    stage.gone()
    assert found(done.out) == [WANTED] * 2, done.err


def step() -> list[float]:
    import torch

    torch.manual_seed(0)
    model = xmp.data_parallel(torch.nn.Linear(4, 1))
    model(torch.full((2, 4), float(xmp.rank() + 1))).sum().backward()
    gradient: list[float] = model.module.weight.grad.flatten().tolist()
    return gradient


def by_rank(rank: int) -> list[float]:
    return step()


def test_in_a_launcher_the_group_is_there() -> None:
    xmp.preload("torch._dynamo")  # as ddp_replicas does
    assert xmp.launcher(step, nprocs=2, runtime="cpu")() == [WANTED] * 2


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_in_replicas_of_a_backend_the_group_is_there(method: str) -> None:
    found = ddp_replicas(by_rank, backend="auto", start_method=method)
    assert found == [WANTED] * 2


def trains(rank: int) -> None:
    by_rank(rank)
    if rank == 0:
        sys.stderr.write("trained\n")


def test_replicas_that_leave_one_by_one_write_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        ddp_replicas(trains, nprocs=4, backend="auto")
    assert capfd.readouterr().err == "trained\n" * 5


def leaves_at_its_own_time(rank: int) -> None:
    """Rank 2 comes last to the store, so waits for the others for longer than its host does; rank 1
    outlives both."""
    import time

    from xmp._inside.frameworks import _torch_rendezvous

    _torch_rendezvous._FORMING = 0.6
    time.sleep({0: 0.0, 1: 0.0, 2: 0.4}[rank])
    xmp.init_process_group()
    time.sleep({0: 0.0, 1: 2.0, 2: 0.0}[rank])


def test_the_host_of_the_store_leaves_after_those_that_wait_there(
    capfd: pytest.CaptureFixture[str],
) -> None:
    replicas(leaves_at_its_own_time, runtime="cpu", nprocs=3)
    assert capfd.readouterr().err == ""
