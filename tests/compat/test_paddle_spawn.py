"""``xmp.compat.paddle.spawn`` in programs of torch and JAX: its four usages, its context.

What it asks for on hosts with GPUs is in tests/plans/test_plan_paddle_spawn.py, what needs Paddle
itself in tests/paddle.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest

import xmp
import xmp.compat.paddle as dist
from tests.support.launching import nothing_started
from tests.support.stage import Script
from xmp._calls.verbs import host_facts
from xmp._plan.runtimes._cores import usable_cores


def train(print_result: bool = False) -> tuple[int, int, bool]:
    """The program of Paddle's docstring, in torch."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    adam = torch.optim.Adam(model.parameters(), lr=0.001)
    loss = torch.nn.functional.mse_loss(model(torch.randn(10, 10)), torch.randn(10, 1))
    if print_result is True:
        os.write(1, b"loss: %.3f\n" % loss.item())
    loss.backward()
    adam.step()
    adam.zero_grad()
    group = torch.distributed
    return group.get_rank(), group.get_world_size(), group.is_initialized()


@pytest.fixture
def _ddp_preloaded() -> None:
    """In the template, not in each replica: 1.8 s of processor time."""
    xmp.preload("torch._dynamo")


def trainers(count: int) -> list[Any]:
    return [(rank, count, True) for rank in range(count)]


@pytest.mark.usefixtures("_ddp_preloaded")
def test_usage_1_the_function_alone() -> None:
    assert list(dist.spawn(train).results()) == trainers(usable_cores(host_facts()))


@pytest.mark.usefixtures("_ddp_preloaded")
def test_usage_2_the_function_and_its_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    cores = usable_cores(host_facts())
    assert list(dist.spawn(train, args=(True,)).results()) == trainers(cores)
    assert capfd.readouterr().out.count("loss: ") == cores


@pytest.mark.usefixtures("_ddp_preloaded")
def test_usage_3_some_of_the_devices(method: str) -> None:
    context = dist.spawn(train, args=[True], nprocs=2, start_method=method)
    assert list(context.results()) == trainers(2)


def test_usage_4_named_devices() -> None:
    with nothing_started(), pytest.raises(xmp.PlanError, match="has no GPU on this host"):
        dist.spawn(train, args=(True,), nprocs=2, gpus="4,5")


@pytest.mark.gpu
def test_usage_4_on_a_gpu() -> None:
    first = xmp.plan(nprocs=1, runtime="cuda").hosts[0].replicas[0]
    mask = dict(first.set)["CUDA_VISIBLE_DEVICES"]
    context = dist.spawn(train, args=(True,), gpus=mask, runtime="cuda", backend="nccl")
    assert list(context.results()) == trainers(1)


# --- the context ----------------------------------------------------------------------------------


def who() -> tuple[int, int]:
    return xmp.rank(), os.getpid()


def test_the_context_is_there_before_and_after_the_end() -> None:
    context = dist.spawn(who, nprocs=2, join=False)
    assert isinstance(context, dist.MultiprocessContext)
    assert repr(context).startswith("<ProcessContext of who, 2 replicas, runtime ")
    while not context.join(timeout=60):
        pass
    again = dist.spawn(who, nprocs=1)
    assert again.join()
    assert again.sentinels == {}
    for each, count in ((context, 2), (again, 1)):
        assert [pid for _, pid in each.results()] == [p.pid for p in each.processes]
        assert len(each.processes) == count
        assert os.getpid() not in {p.pid for p in each.processes}
        with pytest.raises(AttributeError, match=r"return_queues: call results\(\)"):
            _ = each.return_queues
        with pytest.raises(AttributeError, match=r"error_queues: join\(\) and results\(\)"):
            _ = each.error_queues


def scaled(x: int, by: int = 1) -> int:
    return x * by


class Trainer:
    def __init__(self, x: int) -> None:
        self.x = x

    def train(self, by: int) -> int:
        return self.x * by

    __call__ = train


def doubled(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def call(*args: int) -> int:
        return 2 * function(*args)

    return call


@doubled
def decorated(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("func", "args", "value"),
    [
        (functools.partial(scaled, by=3), (5,), 15),
        (lambda x: x + 1, (5,), 6),
        (Trainer(5).train, (2,), 10),
        (Trainer(6), (2,), 12),
        (decorated, (5,), 10),
        (int, ("7",), 7),
    ],
)
def test_every_callable(func: Any, args: Any, value: int) -> None:
    assert list(dist.spawn(func, args, nprocs=2, runtime="cpu").results()) == [value] * 2


def generator() -> Any:
    yield 1


@xmp.launcher
def launches() -> None: ...


@pytest.mark.parametrize(
    ("func", "args", "words"),
    [
        (scaled, (), r"scaled\(x, by\): missing a required argument: 'x'"),
        (scaled, (1, 2, 3), "too many positional arguments"),
        (generator, (), "generator is|is generator, a generator function"),
        (launches, (), "launches launches itself, since xmp.launcher has decorated it"),
        (None, (), "func must be callable, not NoneType"),
    ],
)
def test_what_is_no_function_for_these_arguments(func: Any, args: Any, words: str) -> None:
    with nothing_started(), pytest.raises(TypeError, match=words):
        dist.spawn(func, args, nprocs=2)


def fails(rank: int) -> None:
    if xmp.rank() == rank:
        raise KeyError("the true cause")
    xmp.barrier()


@pytest.mark.failing
@pytest.mark.parametrize("join", [True, False])
def test_the_failure_of_a_function_has_its_cause(join: bool) -> None:
    with pytest.raises(xmp.ReplicaRaised, match="rank 1 of 2") as caught:
        dist.spawn(fails, (1,), nprocs=2, join=join).join()
    assert repr(caught.value.__cause__) == "KeyError('the true cause')"
    assert caught.value.rank == 1


# --- whole programs -------------------------------------------------------------------------------


def test_without_a_guard_warnings_and_the_plan_come_once(script: Script) -> None:
    done = script(
        "import sys, xmp.compat.paddle as dist\n"
        "print('torch' in sys.modules, 'paddle' in sys.modules)\n"
        "def f():\n"
        "    return 1\n"
        "context = dist.spawn(f, nprocs=2, started_port=16571, print_config=True, runtime='cpu')\n"
        "print(list(context.results()))\n",
    )
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "False False"
    assert sum(line.startswith("runtime   cpu: ") for line in lines) == 1
    assert "MASTER_PORT=16571" in done.out
    assert lines[-1] == "[1, 1]"
    assert done.err.count("DeprecationWarning: ") == 1
    assert "train.py:5: DeprecationWarning: xmp: started_port= of spawn" in done.err


def test_a_program_of_jax_starts_no_torch(script: Script) -> None:
    done = script(
        "import sys, xmp, xmp.compat.paddle as dist\n"
        "def f():\n"
        "    import jax\n"
        "    return jax.process_count(), xmp.all_reduce(1.0), 'torch' in sys.modules\n"
        "if __name__ == '__main__':\n"
        "    print(list(dist.spawn(f, nprocs=2).results()))\n",
        timeout=90,
    )
    assert done.out == "[(2, 2.0, False), (2, 2.0, False)]\n", done.err


def test_the_addresses_of_this_host() -> None:
    from xmp._os.names import addresses_of, is_here, own_addresses

    assert is_here("127.0.0.1")
    assert is_here("127.0.0.9")
    assert not is_here("203.0.113.7")  # for documentation alone (RFC 5737)
    assert "127.0.0.1" in own_addresses()
    assert all(is_here(address) for address in own_addresses()[:-1])
    assert "127.0.0.1" in addresses_of("localhost")
    with pytest.raises(OSError, match=r"."):
        addresses_of("no-such-host.invalid")


def test_addresses_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    from xmp._os.names import own_addresses

    monkeypatch.setitem(sys.modules, "psutil", None)
    assert own_addresses()[-1] == socket.gethostname()


def test_under_torchrun_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**ranks, "TORCHELASTIC_RUN_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    for options in ({}, {"ips": "127.0.0.1"}):
        with nothing_started(), pytest.raises(xmp.PlanError, match="torchrun has started this"):
            dist.spawn(who, nprocs=2, **options)  # type: ignore[arg-type]
