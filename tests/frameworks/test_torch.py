"""torch.distributed in real replicas: its rendezvous on a leased port, and the collectives."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.frameworks import ddp_replicas
from tests.support.frameworks import replicas as any_replicas
from tests.support.launching import METHODS
from tests.support.stage import Stage

replicas = partial(any_replicas, runtime="cpu", nprocs=2)


def listeners() -> set[str]:
    """Addresses on which this process listens, as the kernel writes them."""
    own = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[1].partition(":")[0])
    return found


LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


@contextmanager
def free_port() -> Iterator[int]:
    """A port that the kernel gives to no other socket; torch, with SO_REUSEADDR, can listen."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


# --- the rendezvous ----------------------------------------------------------------------------


def five_rounds(rank: int) -> list[float]:
    import torch
    import torch.distributed as dist

    sums = []
    for round_ in range(5):
        dist.init_process_group("gloo")
        value = torch.tensor([float(rank + round_)])
        dist.all_reduce(value)
        sums.append(value.item())
        dist.destroy_process_group()
    return sums


@pytest.mark.parametrize("method", METHODS)
def test_init_and_destroy_work_again_and_again(method: str) -> None:
    expected = [1.0, 3.0, 5.0, 7.0, 9.0]
    assert replicas(five_rounds, start_method=method) == [expected] * 2


def torchs_own_tutorial(rank: int, world_size: int) -> float:
    """The program of torch's DDP tutorial, unchanged."""
    import torch
    import torch.distributed as dist
    from torch import nn, optim
    from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

    class ToyModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net1 = nn.Linear(10, 10)
            self.relu = nn.ReLU()
            self.net2 = nn.Linear(10, 5)

        def forward(self, x: Any) -> Any:
            return self.net2(self.relu(self.net1(x)))

    def setup(rank: int, world_size: int) -> None:
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = "12355"
        dist.init_process_group("gloo", rank=rank, world_size=world_size)

    setup(rank, world_size)
    ddp_model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)
    optimizer.zero_grad()
    outputs = ddp_model(torch.randn(20, 10))
    labels = torch.randn(20, 5)
    loss_fn(outputs, labels).backward()
    optimizer.step()
    weights = float(sum(p.detach().sum() for p in ddp_model.parameters()))
    dist.destroy_process_group()
    return weights


def test_torchs_tutorial_with_its_own_port_is_unchanged() -> None:
    with open(Path(tempfile.gettempdir(), f"xmp-tests-12355-{os.geteuid()}"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another session of these tests has the same port
        weights = ddp_replicas(torchs_own_tutorial, 2)
    assert weights[0] == weights[1]


def tcp_of_its_own(rank: int, port: int) -> int:
    import torch
    import torch.distributed as dist

    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=xmp.world_size())
    value = torch.tensor([rank])
    dist.all_reduce(value)
    dist.destroy_process_group()
    return int(value)


def test_a_tcp_address_of_its_own_is_torchs_business() -> None:
    with free_port() as port:
        assert replicas(tcp_of_its_own, port) == [1] * 2


def by_another_name(rank: int) -> int:
    os.environ["MASTER_ADDR"] = "localhost"  # the planned port stays: a common setdefault
    xmp.init_process_group()
    return int(xmp.all_reduce(1))


def test_the_planned_port_under_another_name_of_this_host_is_the_planned_one() -> None:
    assert replicas(by_another_name) == [2] * 2


def first_some_then_all(rank: int) -> list[int]:
    import torch
    import torch.distributed as dist

    sums = []
    for size in (2, xmp.world_size()):
        if rank < size:
            dist.init_process_group("gloo", rank=rank, world_size=size)
            value = torch.tensor([1])
            dist.all_reduce(value)
            sums.append(int(value))
            dist.destroy_process_group()
    return sums


def test_a_group_of_some_does_not_disturb_the_next_of_all() -> None:
    assert replicas(first_some_then_all, nprocs=3) == [[2, 3], [2, 3], [3]]


def only_meet(rank: int) -> int:
    xmp.init_process_group()
    return rank


def test_a_fast_rank_zero_does_not_take_the_store_from_those_still_connecting(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):
        assert replicas(only_meet, nprocs=8) == list(range(8))
    noise = [line for line in capfd.readouterr().err.splitlines() if "[Gloo]" not in line]
    assert not [line for line in noise if "TCPStore" in line or "socket" in line.lower()]


def reduce_and_look(rank: int) -> set[str]:
    xmp.init_process_group()
    xmp.barrier()
    found = listeners()
    xmp.barrier()
    return found


@pytest.mark.parametrize("method", METHODS)
def test_nothing_listens_off_loopback(method: str) -> None:
    found = replicas(reduce_and_look, start_method=method)
    assert found[0]  # the store: the test does look at something
    assert set().union(*found) <= LOOPBACK


def is_ready(rank: int) -> tuple[bool, str]:
    import torch.distributed as dist

    return dist.is_initialized(), dist.get_backend()


def test_the_group_that_was_asked_for_is_ready_when_the_function_starts() -> None:
    assert replicas(is_ready, backend="gloo") == [(True, "gloo")] * 2


def init_twice(rank: int) -> tuple[bool, int]:
    import torch.distributed as dist

    xmp.init_process_group(timeout=30)
    group = dist.group.WORLD
    xmp.init_process_group()
    return dist.group.WORLD is group, dist.get_world_size()


def test_init_process_group_does_nothing_the_second_time() -> None:
    assert replicas(init_twice) == [(True, 2)] * 2


def trains_and_destroys(rank: int) -> None:
    """A gloo thread may still hold what DDP left in it when the last reference goes."""
    import torch
    import torch.distributed as dist

    xmp.init_process_group()
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 10))
    model = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(10):
        model(torch.ones(256, 64)).sum().backward()
    dist.destroy_process_group()


def test_a_function_that_destroys_its_group_and_returns_ends() -> None:
    for _ in range(5):  # without LastGroups, one of the first hangs
        ddp_replicas(trains_and_destroys, nprocs=4)


def leaves_early(rank: int) -> float | None:
    """Rank 1 makes one collective call fewer than the others."""
    xmp.barrier()
    return xmp.all_reduce(1.0) if rank != 1 else None


def test_ranks_that_diverge_are_named() -> None:
    # Below the 5 s for which rank 1 keeps its connections open: their end would be an error.
    with pytest.raises(
        xmp.ReplicaTimeout, match="Rank 1 had finished while ranks 0, 2 of 3"
    ) as caught:
        replicas(leaves_early, nprocs=3, hang_timeout=3)
    assert caught.value.suspects == (1,)


# --- on GPUs -----------------------------------------------------------------------------------


def on_its_gpu(rank: int) -> Any:
    import torch

    current = torch.cuda.current_device()
    total = xmp.all_reduce({"gpu": torch.ones(2, device="cuda"), "cpu": torch.ones(2)})
    sent = xmp.broadcast([torch.full((2,), rank, device="cuda"), "word"], src=0)
    where = [total["gpu"].device.index, sent[0].device.index, xmp.device().index]
    return current, where, total["gpu"].tolist(), total["cpu"].device.type, sent[0].tolist()


@pytest.mark.gpu
def test_every_replica_has_its_gpu_before_the_function_starts() -> None:
    found = list(xmp.spawn(on_its_gpu, runtime="cuda", join=True))
    size = float(len(found))
    assert found == [(rank, [rank] * 3, [size, size], "cpu", [0, 0]) for rank in range(len(found))]


def grow(rank: int, tensor: Any) -> list[float]:
    tensor.add_(1)
    grown: list[float] = tensor.cpu().tolist()
    return grown


@pytest.mark.gpu
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_cuda_tensor_as_an_argument_is_the_launchers_own(start_method: str) -> None:
    """It travels as a handle of the driver (CUDA IPC); no process that forks opens it."""
    import torch

    tensor = torch.zeros(2, device="cuda")
    options: dict[str, Any] = {"runtime": "cuda", "nprocs": 1, "start_method": start_method}
    for expected in ([1.0, 1.0], [2.0, 2.0]):
        with xmp.spawn(grow, (tensor,), join=False, **options) as context:
            assert list(context.results()) == [expected]
        assert tensor.tolist() == expected


# --- in the caller -----------------------------------------------------------------------------


IN_THE_CALLER = """
import os, sys, traceback
import in_script, xmp

def mine(*error):
    sys.stderr.write("mine\\n")

def threads():
    return {in_script.comm(f"self/task/{task}") for task in os.listdir("/proc/self/task")}

def group():
    xmp.spawn(lambda rank: None, nprocs=1, runtime="cpu", backend="gloo")
    assert not {each for each in threads() if "gloo" in each}, threads()
    assert sys.excepthook is mine, sys.excepthook

def forms_a_group(rank):
    import torch.distributed as dist
    xmp.init_process_group()
    assert dist.is_initialized()
    assert sys.excepthook is not mine, "torch no longer replaces it"

def sets_another(rank):
    xmp.init_process_group()
    sys.excepthook = print

def hook():
    xmp.spawn(forms_a_group, nprocs=1, runtime="cpu")
    assert sys.excepthook is mine, sys.excepthook
    xmp.spawn(sets_another, nprocs=1, runtime="cpu")
    assert sys.excepthook is print, "what the function itself sets stays"

def use(rank):
    import torch
    xmp.init_process_group()
    assert torch.distributed.get_world_size() == 1
    return xmp.all_reduce(torch.ones(2)).sum().item()

def leave_alone(rank):
    return xmp.rank()

def numbers():
    return sorted(os.listdir("/proc/self/fd"))

def state():
    assert xmp.spawn(use, nprocs=1, runtime="cpu")[0] == 2
    import torch.distributed as dist
    import torch.distributed.rendezvous
    module = sys.modules["torch.distributed.rendezvous"]
    before = numbers()
    for fn in (use, leave_alone, use):
        xmp.spawn(fn, nprocs=1, runtime="cpu")
        assert not dist.is_initialized()
        assert module._create_c10d_store.__module__ == "torch.distributed.rendezvous"
        assert numbers() == before, (before, numbers())

sys.excepthook = mine
for check in (group, hook, state):
    said = ""
    try:
        check()
    except Exception:
        said = traceback.format_exc()
    in_script.say(**{check.__name__: said})
sys.excepthook = sys.__excepthook__
"""


@pytest.fixture(scope="module")
def in_the_caller(shared_stage: Stage) -> dict[str, str]:
    """What went wrong in each check; one interpreter makes all, the first launch imports torch."""
    return shared_stage.run(IN_THE_CALLER).said


def test_a_group_in_the_caller_ends_with_its_function(in_the_caller: dict[str, str]) -> None:
    """Also where the function's launch was the first to import torch."""
    assert in_the_caller["group"] == ""


def test_a_launch_in_this_process_gives_the_excepthook_back(in_the_caller: dict[str, str]) -> None:
    assert in_the_caller["hook"] == ""


def test_in_the_caller_torch_and_descriptors_are_as_before(in_the_caller: dict[str, str]) -> None:
    assert in_the_caller["state"] == ""


# --- without a launcher ------------------------------------------------------------------------


def test_a_world_of_one_makes_a_group_without_a_port(tmp_path: Path) -> None:
    """`python train.py` of a script that also runs under xmp.

    It leaves by os._exit: in an interpreter that ends torch aborts now and then (torchrun.py).
    """
    code = """
import os, torch, xmp
xmp.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
assert xmp.all_reduce(3) == 3 and xmp.world_size() == 1 and str(xmp.device()) == "cpu"
torch.distributed.destroy_process_group()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
