"""torch.distributed in real replicas: its rendezvous on a leased port, and the collectives."""

from __future__ import annotations

import faulthandler
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xmp

METHODS = ["forkserver", "spawn", "fork"]
OPS = ["sum", "mean", "min", "max", "prod"]


def replicas(fn: Any, *args: Any, nprocs: int = 4, **options: Any) -> list[Any]:
    if options.get("start_method") == "fork":
        faulthandler.cancel_dump_traceback_later()  # pytest's: a thread that forbids the fork
    with xmp.spawn(fn, args, nprocs=nprocs, runtime="cpu", join=False, **options) as context:
        assert context.join(timeout=90), "not done within 90 s"
        return list(context.results())


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


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


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
    expected = [6.0, 10.0, 14.0, 18.0, 22.0]
    assert replicas(five_rounds, start_method=method) == [expected] * 4


def torchs_own_tutorial(rank: int, world_size: int) -> float:
    """The program of torch's DDP tutorial, as it stands there."""
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
    weights = replicas(torchs_own_tutorial, 2, nprocs=2)
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
    assert replicas(tcp_of_its_own, free_port(), nprocs=3) == [3] * 3


def by_another_name(rank: int) -> int:
    os.environ["MASTER_ADDR"] = "localhost"  # the planned port stays: a common setdefault
    xmp.init_process_group()
    return int(xmp.all_reduce(1))


def test_the_planned_port_under_another_name_of_this_host_is_the_planned_one() -> None:
    assert replicas(by_another_name, nprocs=3) == [3] * 3


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
    assert replicas(first_some_then_all) == [[2, 4], [2, 4], [4], [4]]


def only_meet(rank: int) -> int:
    xmp.init_process_group()
    return rank


def test_a_fast_rank_zero_does_not_take_the_store_from_those_still_connecting(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for _ in range(4):
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
    assert replicas(is_ready, nprocs=2, backend="gloo") == [(True, "gloo")] * 2


def init_twice(rank: int) -> tuple[bool, int]:
    import torch.distributed as dist

    xmp.init_process_group(timeout=30)
    group = dist.group.WORLD
    xmp.init_process_group()
    return dist.group.WORLD is group, dist.get_world_size()


def test_init_process_group_does_nothing_the_second_time() -> None:
    assert replicas(init_twice, nprocs=2) == [(True, 2)] * 2


# --- collectives -------------------------------------------------------------------------------


def reduced(rank: int, op: str) -> Any:
    import numpy as np
    import torch

    value = {
        "tensor": torch.tensor([rank, -1.5]),
        "integers": torch.tensor([rank + 1, 2]),
        "truth": torch.tensor([rank == 0, True]),
        "half": torch.full((2,), 40000.0 if op == "mean" else 2.0, dtype=torch.float16),
        "short": torch.tensor([rank], dtype=torch.int16),
        "empty": torch.empty(0),
        "scalar": torch.tensor(float(rank)),
        "array": [np.array([[rank, 1.0]]), np.array(rank, "uint16"), np.float32(rank)],
        "strided": np.arange(6.0).reshape(2, 3)[:, ::2] + rank,
        "number": (rank, 2.5, True),
        "word": "the same",
        "nothing": None,
    }
    before = str(value)
    result = xmp.all_reduce(value, op)
    assert str(value) == before, "changed in place"
    return result


def reduced_every_way(rank: int) -> Any:
    return {op: reduced(rank, op) for op in OPS}


@pytest.fixture(scope="module")
def by_op() -> list[Any]:
    """What two replicas got, by op; one launch for all."""
    return replicas(reduced_every_way, nprocs=2)


def expected(op: str) -> dict[str, Any]:
    """By the same rules from numpy: two replicas, ranks 0 and 1."""
    import numpy as np

    def of(*both: Any) -> Any:
        return getattr(np, op)(np.stack([np.asarray(each) for each in both]), axis=0)

    strided = np.arange(6.0).reshape(2, 3)[:, ::2]
    return {
        "tensor": of([0.0, -1.5], [1.0, -1.5]),
        "integers": of([1, 2], [2, 2]),
        "truth": of([True, True], [False, True]),
        "short": of([0], [1]),
        "scalar": of(0.0, 1.0),
        "strided": of(strided, strided + 1),
    }


@pytest.mark.parametrize("op", OPS)
def test_all_reduce_over_a_tree(op: str, by_op: list[Any]) -> None:
    import numpy as np
    import torch

    one, other = (each[op] for each in by_op)
    assert str(one) == str(other)
    for name, want in expected(op).items():
        np.testing.assert_allclose(np.asarray(one[name]), want, err_msg=name)
    assert list(one) == ["tensor", "integers", "truth", *list(one)[3:]]
    assert one["half"].dtype == torch.float16
    assert torch.isfinite(one["half"]).all()
    assert one["integers"].dtype == (torch.float32 if op == "mean" else torch.int64)
    assert one["short"].dtype == (torch.float32 if op == "mean" else torch.int16)
    assert (
        one["truth"].dtype
        == {
            "min": torch.bool,
            "max": torch.bool,
            "mean": torch.float32,
            "sum": torch.int64,
            "prod": torch.int64,
        }[op]
    )
    assert one["empty"].shape == (0,)
    assert one["scalar"].shape == ()
    matrix, small, number = one["array"]
    assert (matrix.dtype, matrix.shape) == (np.float64, (1, 2))
    assert (small.dtype, small.shape) == (np.dtype("float64" if op == "mean" else "uint16"), ())
    assert isinstance(number, np.float32)
    assert one["number"][0] == {"sum": 1, "mean": 0.5, "min": 0, "max": 1, "prod": 0}[op]
    assert (one["word"], one["nothing"]) == ("the same", None)


class Config:
    """What is not a tree: goes whole, by pickle."""

    def __init__(self, rank: int) -> None:
        import torch

        self.rank = rank
        self.weights = torch.full((3, 5), float(rank))
        self.half = self.weights.to(torch.bfloat16)


def sent(rank: int) -> Any:
    import numpy as np
    import torch

    config = xmp.broadcast(Config(rank), src=1)
    big = xmp.broadcast(np.full(100_000, rank) if rank == 1 else None, 1)
    parameter = xmp.broadcast(torch.nn.Parameter(torch.full((2,), float(rank))), 1)
    function = xmp.broadcast((lambda: "by value") if rank == 1 else None, 1)
    tied = xmp.broadcast([parameter.data] * 2, 1)
    big[0] = -1  # writable, and nobody else's
    return (
        (type(config) is Config, config.rank, config.weights.sum().item(), str(config.half.dtype)),
        (len(big), int(big[1:].min()), int(big[0])),
        (type(parameter).__name__, parameter.requires_grad, parameter.sum().item()),
        (function(), tied[0] is tied[1]),
    )


def test_broadcast_of_any_object() -> None:
    one, other = replicas(sent, nprocs=2)
    assert one == other
    assert one[0] == (True, 1, 15.0, "torch.bfloat16")
    assert one[1] == (100_000, 1, -1)
    assert one[2] == ("Parameter", True, 2.0)
    assert one[3] == ("by value", True)


def gathered(rank: int) -> Any:
    import torch

    value = {"t": torch.arange(rank + 1), "words": "x" * 2000 * rank, "rank": rank}
    return xmp.all_gather(value)


def test_all_gather_of_unequal_objects() -> None:
    for found in replicas(gathered, nprocs=3):
        assert [each["rank"] for each in found] == [0, 1, 2]
        assert [each["t"].tolist() for each in found] == [[0], [0, 1], [0, 1, 2]]
        assert [len(each["words"]) for each in found] == [0, 2000, 4000]


def refused(rank: int) -> list[str]:
    texts = []
    for call in (lambda: xmp.all_reduce(1, "avg"), lambda: xmp.broadcast(1, 2)):
        with pytest.raises(ValueError) as raised:
            call()
        texts.append(str(raised.value))
    return texts


def test_what_does_not_fit_is_refused_before_anything_is_sent() -> None:
    for texts in replicas(refused, nprocs=2):
        assert texts[0].startswith("op is 'avg'; allowed are")
        assert texts[1] == "src is 2; this launch has the ranks 0 to 1"


def jax_array_in_torch(rank: int) -> Any:
    import jax.numpy as jnp

    return xmp.all_reduce(jnp.array([rank, 1])), xmp.all_gather(jnp.array([rank]))


def test_jax_arrays_go_as_numpy_arrays() -> None:
    import numpy as np

    total, parts = replicas(jax_array_in_torch, nprocs=2)[0]
    assert isinstance(total, np.ndarray)
    assert total.tolist() == [1, 2]
    assert [part.tolist() for part in parts] == [[0], [1]]


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


# --- in the caller -----------------------------------------------------------------------------


def test_in_the_caller_torch_and_descriptors_are_as_before(tmp_path: Path) -> None:
    code = """
import os
import xmp

def use(rank):
    import torch
    xmp.init_process_group()
    assert torch.distributed.get_world_size() == 1
    return xmp.all_reduce(torch.ones(2)).sum().item()

def leave_alone(rank):
    return xmp.rank()

def numbers():
    return sorted(os.listdir("/proc/self/fd"))

assert xmp.spawn(use, nprocs=1, runtime="cpu")[0] == 2
import torch.distributed as dist
import torch.distributed.rendezvous
import sys
module = sys.modules["torch.distributed.rendezvous"]
before = numbers()
for fn in (use, leave_alone, use):
    xmp.spawn(fn, nprocs=1, runtime="cpu")
    assert not dist.is_initialized()
    assert module._create_c10d_store.__module__ == "torch.distributed.rendezvous"
    assert numbers() == before, (before, numbers())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)


# --- where nobody launched anything ------------------------------------------------------------


def test_a_world_of_one_makes_a_group_without_a_port(tmp_path: Path) -> None:
    """`python train.py` of a script that also runs under xmp."""
    code = """
import torch, xmp
xmp.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
assert xmp.all_reduce(3) == 3 and xmp.world_size() == 1 and str(xmp.device()) == "cpu"
torch.distributed.destroy_process_group()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)


def test_under_torchrun_it_is_torchruns_world(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import xmp
total = xmp.all_reduce(xmp.rank() + 1)
made = xmp.once(lambda: f"made by {xmp.rank()}")
assert xmp.broadcast(xmp.rank(), 1) == 1
if xmp.rank() == 0:
    print("said", xmp.world_size(), total, made)
xmp.barrier()
import torch.distributed
torch.distributed.destroy_process_group()
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "said 2 3 made by 0" in done.stdout
