"""Right uses of the public functions: no type checker may complain about any of these."""

# pyright: reportUnusedCallResult=false

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from typing_extensions import assert_type

import xmp
import xmp.compat.accelerate as launchers
import xmp.compat.megengine as dist
import xmp.compat.paddle as paddle_dist
import xmp.compat.torch_mp as mp
import xmp.compat.torch_xla as xla
import xmp.testing


def train(rank: int, epochs: int, name: str = "") -> float:
    return rank * epochs + len(name)


def hears(event: xmp.Event) -> None:
    print(event.name)


def variables(local_rank: int) -> dict[str, str]:
    return {"SHARD": str(local_rank)}


def spawns(join: bool) -> None:
    assert_type(xmp.spawn(train, (1,)), "xmp.Results[float]")
    assert_type(xmp.spawn(train, args=[1], nprocs=None), "xmp.Results[float]")
    assert_type(xmp.spawn(train, (1,), join=False), "xmp.ProcessContext[float]")
    assert_type(xmp.spawn(train, (1,), 2, join), "xmp.Results[float] | xmp.ProcessContext[float]")
    assert_type(xmp.launch(train, (1,), hosts=2, engine="local"), "xmp.Results[float]")
    assert_type(xmp.launch(train, (1,), hosts="v6e:4x4", engine="ray"), "xmp.Results[float]")
    nodes = ["6c5d", "0f31"]
    placed = xmp.launch(train, (1,), 2, join, hosts=nodes, engine="ray", runtime_env={"pip": []})
    assert_type(placed, "xmp.Results[float] | xmp.Job[float]")
    logs = xmp.launch(train, (1,), hosts=2, engine="ray", log_dir=Path("x"), gather_logs=True)
    assert_type(logs, "xmp.Results[float]")
    job = xmp.launch(train, (1,), hosts=2, engine="local", join=False, timeout=60)
    assert_type(job, "xmp.Job[float]")
    assert_type(job.results()[0], float)
    print([host.name for host in job.hosts], job.stacks(), job.join(1.0))
    results = xmp.spawn(train, (1,), nprocs=2)
    assert_type(results[0], float)
    assert_type(results.by_rank, "dict[int, float]")
    assert_type(results.timeline.last_entered(), float)
    context = xmp.spawn(train, (1,), nprocs=2, join=False)
    assert_type(context.join(timeout=3), bool)
    assert_type(context.results()[0], float)
    assert_type(context.pids(), "list[int]")


def every_keyword() -> None:
    xmp.spawn(
        train,
        args=(1,),
        nprocs=8,
        join=True,
        daemon=False,
        start_method="spawn",
        kwargs={"name": "a"},
        runtime="cpu",
        devices=[4, 5],
        backend="gloo",
        env={"SHARD": "0"},
        seed=0,
        threads=2,
        bind="numa",
        start_timeout=60,
        timeout=3.5,
        hang_timeout=None,
        grace=1,
        max_restarts=3,
        log_dir=Path("logs"),
        prefix="[{rank}] ",
        show=range(2),
        progress=False,
        events=hears,
    )
    xmp.spawn(train, (1,), devices="4,5", env=variables, bind=True, log_dir="logs", prefix=True)
    xmp.spawn(train, (1,), show="0,2-3", events="events.jsonl")
    xmp.spawn(train, (1,), show={0, 1}, events=Path("events.jsonl"))


def words(method: Literal["spawn", "fork"], runtime: str) -> None:
    xmp.spawn(train, (1,), start_method=method, runtime=runtime, bind="cores")
    assert_type(xmp.all_reduce(1, op="mean"), int)
    try:
        xmp.spawn(train, (1,), start_method=None, runtime="of_another_package", bind=False)
    except xmp.ReplicaError as error:
        assert_type(error.failures[0].rank, int)
        assert_type(error.failures[0].what, str)
        assert_type(error.failures[0].traceback, str)
        assert_type(error.failures[0].stderr + error.failures[0].stdout, str)
        assert_type(error.failures[0].stacks, str)
        print(error.stacks, error.locals, error.history, error.results, error.host)
        assert_type(error.failures[0].exception, "BaseException | None")


def launches(join: bool) -> None:
    assert_type(xmp.launch(train, (1,)), "xmp.Results[float]")
    assert_type(xmp.launch(train, (1,), join=False, seed=3), "xmp.ProcessContext[float]")
    assert_type(xmp.launch(train, (1,), 2, join), "xmp.Results[float] | xmp.ProcessContext[float]")
    xmp.run_script()


@xmp.launcher
def fits(epochs: int, *, name: str = "") -> float:
    return epochs + len(name)


@xmp.launcher(nprocs=2, rank_start=0, world_size=4, master_ip="10.0.0.2", port=29500)
def placed(epochs: int) -> str:
    return str(epochs)


class Trainer:
    @xmp.launcher(nprocs=2, backend="gloo", timeout=3.5, start_method="spawn", events=hears)
    def fit(self, epochs: int) -> int:
        return epochs


def decorated() -> None:
    assert_type(fits(3, name="a"), "list[float]")
    assert_type(placed(epochs=3), "list[str]")
    assert_type(Trainer().fit(3), "list[int]")
    assert_type(xmp.launcher(train, nprocs=2)(0, 1), "list[float]")


def in_a_replica(group: object) -> None:
    xmp.init_process_group()
    xmp.init_process_group("gloo", timeout=timedelta(minutes=5))
    xmp.init_process_group(backend="nccl", timeout=60)
    assert_type(xmp.rank(group), int)
    assert_type(xmp.world_size(group), int)
    assert_type(xmp.all_reduce(1.5, "max", group), float)
    assert_type(xmp.broadcast("a", 0, group=group), str)
    assert_type(xmp.all_gather(1, group), "list[int]")
    xmp.barrier(group)
    xmp.barrier(xmp.local_group())
    replica = xmp.replica()
    assert_type(replica.device_type, str)
    assert_type(replica.device_id, int)
    assert_type(replica.device_ordinal, int)
    assert_type(replica.endpoints, "tuple[str, ...]")
    assert_type(replica.endpoint, str)
    assert_type(replica.sampler_kwargs, "dict[str, int]")


def others() -> None:
    assert_type(xmp.start_processes(train, (1,), 2), None)
    assert_type(xmp.start_processes(train, (1,), 2, join=False), "xmp.ProcessContext[float]")
    assert_type(xmp.default_nprocs(), int)
    plan = xmp.plan(2, runtime="cpu", facts=xmp.host_facts())
    assert_type(plan, xmp.JobPlan)
    assert_type(plan.world_size, int)
    xmp.preload("torch", "jax")
    xmp.shutdown()
    assert_type(xmp.rank(), int)


def as_torch_has_it(join: bool) -> None:
    assert_type(mp.spawn(train, (1,), 2), None)
    assert_type(mp.spawn(train, args=(1,), nprocs=2, join=True, daemon=False), None)
    assert_type(mp.spawn(train, (1,), join=join), "mp.ProcessContext | None")
    context = mp.start_processes(train, (1,), 2, join=False, start_method="fork")
    assert_type(context, mp.ProcessContext)
    assert_type(context.sentinels, "dict[int, int]")
    assert_type(context.processes[0].exitcode, "int | None")
    context.processes[0].terminate()
    old_name: mp.SpawnContext = context
    try:
        while not old_name.join(timeout=1.0, grace_period=5):
            pass
    except mp.ProcessRaisedException as error:
        assert_type(error.error_index, int)
    except mp.ProcessExitedException as error:
        assert_type(error.exit_code, "int | None")
        assert_type(error.signal_name, "str | None")
    except mp.ProcessException as error:
        assert_type(error.error_pid, int)
        raise mp.ProcessExitedException(error.msg, 0, 1, 3) from error


@dist.launcher
def on_every_device(epochs: int) -> float:
    return float(epochs)


@dist.launcher(n_gpus=2, world_size=4, rank_start=2, master_ip="10.0.0.2", port=23456)
def on_two_of_four(epochs: int) -> str:
    return str(epochs)


def as_megengine_has_it() -> None:
    assert_type(on_every_device(epochs=3), "list[float]")
    assert_type(on_two_of_four(3), "list[str]")
    assert_type(dist.launcher(train, 2, device_type="gpu", backend="nccl")(0, 1), "list[float]")


def tests_without_the_hardware() -> None:
    assert_type(xmp.testing.RECORDED, "tuple[str, ...]")
    assert_type(xmp.testing.recorded_facts("kaggle-v5e-8"), xmp.HostFacts)
    assert_type(xmp.plan(8, facts=xmp.testing.recorded_facts("v4-32")), xmp.JobPlan)
    with xmp.testing.fake_chips(4):
        assert_type(xmp.spawn(train, (1,), runtime="fake"), "xmp.Results[float]")


def of_accelerate() -> None:
    launchers.notebook_launcher(train, (0, 1), 2)
    launchers.notebook_launcher(lambda: print(1), num_processes=None, mixed_precision="bf16")
    launchers.notebook_launcher(
        train,
        args=[0, 1],
        num_processes=4,
        use_port=29501,
        master_addr="10.0.0.2",
        node_rank=1,
        num_nodes=2,
        rdzv_backend="static",
        rdzv_endpoint="10.0.0.2:29501",
        rdzv_conf={"timeout": 900},
        rdzv_id="none",
        max_restarts=1,
        monitor_interval=1,
        log_line_prefix_template="[${rank}] ",
    )
    launchers.debug_launcher(train, (0, 1))
    launchers.debug_launcher(train, [0, 1], num_processes=4)


def of_paddle() -> None:
    context = paddle_dist.spawn(no_rank, (2,), nprocs=2, gpus=[0], print_config=True)
    assert_type(context, "paddle_dist.MultiprocessContext[float]")
    paddle_dist.spawn(no_rank, join=False, start_method="fork", ips="a,b", runtime="paddle")


def no_rank(epochs: int = 1) -> float:
    return float(epochs)


def of_torch_xla() -> None:
    xla.spawn(train, (1,), join=False).join()
    xla.spawn(train, args=(1,), nprocs=None, start_method="fork")
    xla.launch(train, args=(1,), debug_single_process=True)
