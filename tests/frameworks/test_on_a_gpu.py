"""Launches on a real NVIDIA GPU: torch with nccl, JAX, and what ends badly on a device.

One GPU is enough: a replica of its own is started wherever something is asked for that needs one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.lazily import lazily
from tests.support.stage import Stage

pytestmark = pytest.mark.gpu

torch = lazily("torch")
np = lazily("numpy")

on_gpu = partial(xmp.spawn, nprocs=1, runtime="cuda", timeout=120)
on_jax = partial(xmp.spawn, nprocs=1, runtime="jax", timeout=120)


def compute_processes() -> set[int]:
    """Return the processes that hold a context on a GPU, as the driver lists them."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return {int(line) for line in subprocess.check_output(command, text=True).split()}


def memory_used() -> int:
    """Return the MiB that are used on the first GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.check_output(command, text=True))


def holds_a_gpu(pid: int) -> bool:
    """Tell whether process ``pid`` has a device file of the driver open."""
    names = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return any(re.match(r"/dev/nvidia\d", name) for name in names)


# --- torch ----------------------------------------------------------------------------------------


def about_the_device(rank: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    xmp.init_process_group()  # a world of one forms no group of itself
    value = torch.full((3,), rank + 1.0, device=xmp.device())
    dist.all_reduce(value)
    reduced = xmp.all_reduce(value)
    xmp.barrier()
    return {
        "device": str(xmp.device()),
        "current": torch.cuda.current_device(),
        "backend": dist.get_backend(),
        "reduced": reduced.tolist(),
        "on": str(reduced.device),
        "template": holds_a_gpu(os.getppid()),
        "runtime": xmp.replica().runtime,
    }


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_replica_has_its_device_and_a_group(method: str) -> None:
    for _ in range(2):  # the second launch is forked from a template that must not hold a GPU
        (found,) = on_gpu(about_the_device, start_method=method)
        assert found["device"] == found["on"] == "cuda:0"
        assert (found["current"], found["backend"], found["runtime"]) == (0, "nccl", "cuda")
        assert found["reduced"] == [1.0] * 3
        assert not found["template"]


def test_the_gpu_is_chosen_by_itself() -> None:
    (found,) = xmp.spawn(about_the_device, timeout=120)
    assert found["runtime"] == "cuda"


def test_more_replicas_than_gpus_are_refused() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(
        xmp.PlanError, match=rf"nprocs={count + 1} does not fit this host: {count} "
    ):
        xmp.spawn(about_the_device, nprocs=count + 1, runtime="cuda")


def test_cpu_replicas_beside_a_gpu() -> None:
    found = xmp.spawn(lambda rank: xmp.all_reduce(rank), nprocs=2, runtime="cpu", timeout=120)
    assert found == [1, 1]


def test_a_launcher_that_has_initialised_cuda(stage: Stage) -> None:
    outcome = stage.run(
        """
        import torch
        import xmp

        def work(rank):
            import torch
            return torch.ones(2, device=xmp.device()).sum().item()

        if __name__ == "__main__":
            here = torch.ones(2, device="cuda")
            print(xmp.spawn(work, nprocs=1, runtime="cuda", timeout=120))
            try:
                xmp.spawn(work, nprocs=1, runtime="cuda", timeout=120, start_method="fork")
            except xmp.StartError as error:
                print("refused:", error)
        """,
        timeout=180,
    )
    assert "Results([2.0])" in outcome.out
    assert 'refused: start_method="fork"' in outcome.out
    assert "torch has initialised CUDA in this process" in outcome.err


def holds(rank: int, tensor: Any) -> tuple[Any, ...]:
    assert tensor.device.type == "cuda"
    return tensor * 2, tensor.device.type


def test_tensors_go_in_on_the_device_and_come_back_on_the_cpu() -> None:
    ((doubled, seen),) = on_gpu(holds, (torch.arange(4, device="cuda"),))
    assert (seen, doubled.device.type, doubled.tolist()) == ("cuda", "cpu", [0, 2, 4, 6])


def trains(rank: int, model: Any) -> list[float]:
    import torch

    torch.manual_seed(0)
    model = xmp.data_parallel(model.to(xmp.device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(64, 8, device=xmp.device()), torch.zeros(64, 1, device=xmp.device())
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_model_trains_data_parallel() -> None:
    (losses,) = on_gpu(trains, (xmp.MpModelWrapper(torch.nn.Linear(8, 1)),))
    assert losses[-1] < losses[0] / 2


# --- what ends badly ------------------------------------------------------------------------------


def asks_for_too_much(rank: int) -> None:
    import torch

    torch.empty(1 << 50, dtype=torch.uint8, device=xmp.device())


def test_out_of_device_memory_is_the_functions_own_error() -> None:
    with pytest.raises(xmp.ReplicaError, match="CUDA out of memory") as caught:
        on_gpu(asks_for_too_much)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def takes_and(rank: int, what: str, mark: str) -> None:
    import torch

    kept = torch.empty(2 << 30, dtype=torch.uint8, device=xmp.device())
    torch.cuda.synchronize()
    Path(mark).write_text(str(os.getpid()))
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:  # the device is busy when the limit comes
        torch.cuda._sleep(1_000_000_000)
        torch.cuda.synchronize()
        assert kept.numel()


@pytest.mark.parametrize(
    ("what", "options", "says"),
    [
        ("killed", {"timeout": 120}, "SIGKILL"),
        ("busy", {"timeout": 15}, "timeout"),
    ],
)
def test_device_memory_is_free_when_the_error_is_there(
    what: str, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    mark = tmp_path / "pid"
    torch.cuda.init()
    before = memory_used()
    with pytest.raises(xmp.XmpError, match=f"(?i){says}"):
        xmp.spawn(takes_and, (what, str(mark)), nprocs=1, runtime="cuda", **options)
    pid = int(mark.read_text())
    assert not Path(f"/proc/{pid}").exists()
    assert memory_used() - before < 1024
    (found,) = on_gpu(about_the_device)
    assert found["reduced"] == [1.0] * 3


def test_a_killed_launcher_leaves_nothing_on_the_gpu(stage: Stage) -> None:
    mark = stage.folder / "pid"
    process = stage.start(
        """
        import os, in_script, torch, xmp

        def work(rank):
            import torch
            kept = torch.empty(2 << 30, dtype=torch.uint8, device=xmp.device())
            torch.cuda.synchronize()
            open("new", "w").write(str(os.getpid()))
            os.rename("new", "pid")
            in_script.never_returns()

        if __name__ == "__main__":
            xmp.spawn(work, nprocs=1, runtime="cuda", timeout=300)
        """
    )
    stage.reached(process, "pid", seconds=120)
    process.kill()
    process.wait()
    stage.gone()
    assert int(mark.read_text()) not in compute_processes()


def fails_once(rank: int) -> int:
    import torch

    torch.ones(1, device=xmp.device())
    if xmp.restart_count() == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    return xmp.restart_count()


def test_a_restart_has_the_gpu_again() -> None:
    assert on_gpu(fails_once, max_restarts=2) == [1]


# --- JAX ------------------------------------------------------------------------------------------


def jax_on_the_device(rank: int, array: Any) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    value = jax.jit(lambda x: (x @ x.T).sum())(jnp.asarray(array))
    return {
        "platform": jax.devices()[0].platform,
        "local": [device.id for device in jax.local_devices()],
        "value": value,
        "reduced": float(xmp.all_reduce(value)),
        "template": holds_a_gpu(os.getppid()),
    }


def test_jax_computes_on_the_gpu() -> None:
    for _ in range(2):
        (found,) = on_jax(jax_on_the_device, (np.ones((4, 4), np.float32),))
        assert (found["platform"], found["local"], found["template"]) == ("gpu", [0], False)
        assert isinstance(found["value"], (np.ndarray, np.generic))
        assert found["reduced"] == float(found["value"]) == 64.0


def jax_asks_for_too_much(rank: int) -> None:
    import jax.numpy as jnp

    jnp.zeros((1 << 40,), jnp.int8).block_until_ready()


def test_jax_out_of_device_memory() -> None:
    with pytest.raises(xmp.ReplicaError, match=r"RESOURCE_EXHAUSTED|[Oo]ut of memory"):
        on_jax(jax_asks_for_too_much)


# --- the command line -----------------------------------------------------------------------------


def test_a_script_runs_on_the_gpu(stage: Stage) -> None:
    path = stage.write(
        """
        import os, torch, torch.distributed as dist

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        value = torch.ones(2, device="cuda")
        dist.all_reduce(value)
        print("sum", value.tolist(), value.device)
        dist.destroy_process_group()
        """
    )
    done = stage.python("-m", "xmp", "run", "-n", "1", "--runtime", "cuda", str(path), timeout=180)
    assert done.code == 0, done.err
    assert "sum [1.0, 1.0] cuda:0" in done.out


def test_doctor_and_facts_see_the_gpu(stage: Stage) -> None:
    assert xmp.host_facts().gpus == {"vendor": "nvidia", "count": torch.cuda.device_count()}
    done = stage.python("-m", "xmp", "doctor", timeout=180)
    assert done.code == 0, done.out + done.err
    assert "cuda" in done.out
