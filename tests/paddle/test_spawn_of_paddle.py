"""``xmp.compat.paddle.spawn`` beside Paddle 3.3's own: its four usages, the same numbers."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

import xmp.compat.paddle as dist
from tests.support.stage import Stage
from xmp._calls.verbs import host_facts
from xmp._plan.runtimes._cores import usable_cores

pytestmark = pytest.mark.paddle


def train(print_result: bool = False) -> tuple[int, int, bool]:
    """As in the docstring of ``paddle.distributed.spawn`` (Paddle 3.3.1).

    But for one argument: there it gives DataParallel ``group.process_group``, which Paddle 3.3.1
    refuses under its own spawn too ("ProcessGroup must be an instance of Group").
    """
    import paddle
    import paddle.distributed as paddles

    group = paddles.init_parallel_env()
    layer = paddle.nn.Linear(10, 1)
    parallel = paddle.DataParallel(layer, group=group)
    adam = paddle.optimizer.Adam(learning_rate=0.001, parameters=parallel.parameters())
    inputs, labels = paddle.randn([10, 10], "float32"), paddle.randn([10, 1], "float32")
    loss = paddle.nn.MSELoss()(parallel(inputs), labels)
    if print_result is True:
        os.write(1, b"loss: %.3f\n" % loss.item())
    loss.backward()
    adam.step()
    adam.clear_grad()
    return paddles.get_rank(), paddles.get_world_size(), paddles.is_initialized()


def trainers(count: int) -> list[Any]:
    return [(rank, count, count > 1) for rank in range(count)]


def test_usage_1_the_function_alone() -> None:
    cores = usable_cores(host_facts())
    assert list(dist.spawn(train).results()) == trainers(cores)


def test_usage_2_the_function_and_its_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    context = dist.spawn(train, args=(True,))
    cores = usable_cores(host_facts())
    assert list(context.results()) == trainers(cores)
    assert capfd.readouterr().out.count("loss: ") == cores


def test_usage_3_some_of_the_devices(capfd: pytest.CaptureFixture[str]) -> None:
    context = dist.spawn(train, args=(True,), nprocs=2)
    assert list(context.results()) == trainers(2)
    assert context.join()
    assert capfd.readouterr().out.count("loss: ") == 2


def test_usage_4_named_devices() -> None:
    """Paddle built for the CPU ignores ``gpus``; tests/plans has a host with these GPUs."""
    with pytest.raises(ValueError, match="gpus='4,5': runtime 'paddle' has no GPU on this host"):
        dist.spawn(train, args=(True,), nprocs=2, gpus="4,5")


def test_names_and_defaults_are_paddles() -> None:
    import paddle.distributed as paddles

    here, there = (inspect.signature(each).parameters for each in (dist.spawn, paddles.spawn))
    assert list(here) == list(there)
    assert [p.default for p in here.values()] == [p.default for p in there.values()]
    assert {"join", "processes", "sentinels"} <= {*dir(dist.MultiprocessContext)}


# --- the same program under both ------------------------------------------------------------------

PROGRAM = """
import json, sys
import numpy as np
import paddle
import paddle.distributed as paddles
import xmp.compat.paddle as xmps

def numbers(tensors):
    return [float(x) for t in tensors for x in t.numpy().ravel()]

def train(steps):
    paddles.init_parallel_env()
    rank, world = paddles.get_rank(), paddles.get_world_size()
    paddle.set_default_dtype("float64")
    paddle.seed(7 + rank)  # DataParallel gives all trainers the parameters of the first one
    layer = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.Tanh(), paddle.nn.Linear(3, 1))
    model = paddle.DataParallel(layer)
    sgd = paddle.optimizer.SGD(learning_rate=0.1, parameters=model.parameters())
    data = np.random.default_rng(0).normal(size=(steps, 2, world, 8, 4))

    def loss(x):
        x = paddle.to_tensor(x)
        return ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()

    total = paddle.to_tensor([1.5 + rank, 2.0])
    paddles.all_reduce(total)
    alone, grads = [], []
    for step in range(steps):
        with model.no_sync():
            loss(data[step, 0, rank]).backward()
        alone.append(numbers(p.grad for p in model.parameters()))
        loss(data[step, 1, rank]).backward()
        grads.append(numbers(p.grad for p in model.parameters()))
        sgd.step()
        sgd.clear_grad()
    return {"rank": rank, "world": world, "sums": numbers([total]), "alone": alone,
            "gradients": grads, "parameters": numbers(model.parameters())}

if __name__ == "__main__":
    if sys.argv[1] == "paddle":
        context = paddles.spawn(train, (3,), nprocs=2)
        found = [queue.get() for queue in context.return_queues]
    else:
        found = list(xmps.spawn(train, (3,), nprocs=2).results())
    print(json.dumps(found))
"""


def test_the_same_program_gives_the_same_sums_gradients_and_parameters(stage: Stage) -> None:
    path = stage.write(PROGRAM)
    paddles, xmps = (
        stage.python(str(path), which, timeout=90).json() for which in ("paddle", "xmp")
    )
    for name in ("rank", "world", "sums", "alone", "gradients", "parameters"):
        for ours, theirs in zip(xmps, paddles, strict=True):
            print(f"{name} of rank {ours['rank']}", *_shown(theirs[name], ours[name]), sep="\n")
            assert _flat(ours[name]) == pytest.approx(_flat(theirs[name]), rel=1e-12, abs=0)
    first, second = xmps
    assert first["sums"] == [4.0, 4.0]
    assert first["gradients"] == second["gradients"]
    assert first["alone"] != second["alone"]
    assert first["parameters"] == second["parameters"]


def _flat(value: Any) -> list[float]:
    return [x for each in value for x in _flat(each)] if isinstance(value, list) else [value]


def _shown(theirs: Any, ours: Any) -> tuple[str, str, str]:
    pairs = list(zip(_flat(theirs), _flat(ours)))
    lists = [" ".join(f"{x:.12g}" for x in column[:6]) for column in zip(*pairs)]
    worst = max(abs(a - b) for a, b in pairs)
    return (f"  paddle.distributed.spawn  {lists[0]}", f"  xmp.compat.paddle.spawn   {lists[1]}",
            f"  largest difference of {len(pairs)} numbers: {worst:g}")  # fmt: skip


# --- hosts, launchers -----------------------------------------------------------------------------

HOST = """
import json, sys, warnings
import paddle
import paddle.distributed as paddles
import xmp.compat.paddle as dist

def meet():
    x = paddle.to_tensor([1.0 + paddles.get_rank()])
    paddles.all_reduce(x)
    return paddles.get_rank(), paddles.get_world_size(), x.tolist()

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    here = {"node_ip": sys.argv[1], "started_port": int(sys.argv[2])}
    print(json.dumps(list(dist.spawn(meet, nprocs=2, ips="127.0.0.2,127.0.0.3", **here).results())))
"""


def test_two_hosts_are_one_job(stage: Stage) -> None:
    port = str(_free_port())
    hosts = [stage.start(HOST, address, port) for address in ("127.0.0.2", "127.0.0.3")]
    found = [stage.outcome(each, 90).json() for each in hosts]
    assert found == [[[rank, 4, [10.0]] for rank in ranks] for ranks in ((0, 1), (2, 3))]


def _free_port() -> int:
    """Where a range of two ports is free on all addresses, as far as can be known."""
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


REFUSED = """
import os
import xmp
import xmp.compat.paddle as dist

try:
    dist.spawn(print, nprocs=2)
except xmp.PlanError as error:
    said = str(error)
with open(f"said.{os.environ['PADDLE_TRAINER_ID']}", "w") as file:
    file.write(f"{xmp.rank()} of {xmp.world_size()}: {said}")
"""


def test_under_paddles_own_launcher_it_is_refused(stage: Stage) -> None:
    """Each of its processes would make a world of its own."""
    for rank, said in enumerate(_said_when_launched(stage, REFUSED)):
        assert said.startswith(f"{rank} of 2: paddle.distributed.launch has started this process")
        assert f"as rank {rank} of 2 (PADDLE_GLOBAL_RANK={rank}, PADDLE_GLOBAL_SIZE=2" in said


IN_ITS_PROCESSES = """
import os
import paddle
import xmp

def total(rank):
    return xmp.all_reduce(rank + 1)

try:
    xmp.launch(total)
except xmp.PlanError as error:
    said = str(error)
paddle.distributed.init_parallel_env()
with open(f"said.{os.environ['PADDLE_TRAINER_ID']}", "w") as file:
    file.write(f"{list(xmp.launch(total))} {said}")
"""


def test_in_its_processes_launch_runs_the_function_once_they_are_connected(stage: Stage) -> None:
    for said in _said_when_launched(stage, IN_ITS_PROCESSES):
        assert said.startswith("[3] runtime 'paddle' cannot connect the processes")
        assert "Call paddle.distributed.init_parallel_env() before" in said


def _said_when_launched(stage: Stage, source: str) -> list[str]:
    """What the two trainers of Paddle's launcher have written into their files."""
    path = stage.write(source)
    options = ["--nproc_per_node", "2", "--log_dir", str(stage.folder / "logs")]
    done = stage.python("-m", "paddle.distributed.launch", *options, str(path), timeout=90)
    assert done.code == 0, done.err
    return [Path(stage.folder, f"said.{rank}").read_text() for rank in (0, 1)]


def test_the_plan_is_printed_before_the_replicas_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dist.spawn(train, nprocs=1, backend="gloo", print_config=True)
    said = capsys.readouterr().out
    assert said.startswith("runtime   paddle: ")
    assert "PADDLE_DISTRI_BACKEND=gloo" in said
    assert "every replica is a trainer of Paddle's" in said
