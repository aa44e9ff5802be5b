"""Deliberate mistakes: a type checker has to refuse each line that ends with ``# refused``."""

# pyright: reportUnusedCallResult=false

from __future__ import annotations

import xmp
import xmp.compat.accelerate as launchers
import xmp.compat.megengine as dist
import xmp.compat.paddle as paddle_dist
import xmp.compat.torch_mp as mp
import xmp.compat.torch_xla as xla
import xmp.testing


def train(rank: int, epochs: int) -> float:
    return rank * epochs


def no_rank() -> None: ...


@xmp.launcher(nprocs=2)
def fits(epochs: int) -> float:
    return float(epochs)


def hears_nothing() -> None: ...


xmp.spawn(train, (1,), nproc=2)  # refused
xmp.spawn(train, (1,), join=False, nproc=2)  # refused
xmp.spawn(train, (1,), timeout="3")  # refused
xmp.spawn(train, (1,), nprocs="2")  # refused
xmp.spawn(train, (1,), nprocs=2.0)  # refused
xmp.spawn(train, 1)  # refused
xmp.spawn(train, "ab")  # refused
xmp.spawn(no_rank)  # refused
xmp.spawn(train, (1,), kwargs=[("epochs", 1)])  # refused
xmp.spawn(train, (1,), env={"SHARD": 0})  # refused
xmp.spawn(train, (1,), seed="0")  # refused
xmp.spawn(train, (1,), start_method="forkserve")  # refused
xmp.spawn(train, (1,), join=False, start_method="threads")  # refused
xmp.spawn(train, (1,), bind="node")  # refused
xmp.spawn(train, (1,), runtime=3)  # refused
xmp.launch(train, (1,), start_method="thread")  # refused
xmp.plan(bind="core")  # refused
xmp.all_reduce(1.5, "avg")  # refused
print(xmp.Any)  # refused
xmp.spawn(train, (1,), max_restarts=None)  # refused
xmp.spawn(train, (1,), log_dir=3)  # refused
xmp.spawn(train, (1,), progress="yes")  # refused
xmp.spawn(train, (1,), events=hears_nothing)  # refused
xmp.spawn(train, (1,), started_port=6170)  # refused
xmp.spawn(train, (1,)).join()  # refused
xmp.spawn(train, (1,))[0].upper()  # refused
xmp.spawn(train, (1,), join=False)[0]  # refused
xmp.launch(train, (1,), nproc=2)  # refused
xmp.launch(no_rank)  # refused
xmp.launch(train, (1,), hosts=2.5, engine="ray")  # refused
xmp.launch(train, (1,), hosts=[1, 2], engine="ray")  # refused
xmp.launch(train, (1,), hosts=2, engine=3)  # refused
xmp.launch(train, (1,), hosts=2, engine="ray", log_dir="x", gather_logs="yes")  # refused
xmp.launch(train, (1,), log_dir="x", gather_logs=True)  # refused
xmp.spawn(train, (1,), log_dir="x", gather_logs=True)  # refused
xmp.launch(train, (1,), hosts=2, engine="local").stacks()  # refused
xmp.launch(train, (1,), hosts=2, engine="local", join=False).upper()  # refused
xmp.run_script("train.py")  # refused
xmp.start_processes(train, (1,), runtime="cpu")  # refused
xmp.start_processes(train, (1,)).join()  # refused
xmp.plan(runtim="cpu")  # refused
xmp.preload(None)  # refused
xmp.default_nprocs(2)  # refused
xmp.spwan(train, (1,))  # refused
xmp.device_count()  # refused
mp.spawn(train, (1,), runtime="cpu")  # refused
mp.spawn(train, (1,)).join()  # refused
mp.start_processes(train, (1,), start_method=3)  # refused
mp.start_processes(train, (1,), 2, join=False).jion()  # refused
mp.start_processes(train, (1,), start_method="threads")  # refused
xmp.start_processes(train, (1,), start_method="threads")  # refused
xmp.launcher(fits, start_method="threads")  # refused
xmp.ReplicaError().failures[0].wat()  # refused
fits()  # refused
fits("3")  # refused
fits(3)[0].upper()  # refused
xmp.launcher(fits, nproc=2)  # refused
xmp.launcher(fits, join=False)  # refused
xmp.launcher(nprocs="2")  # refused
xmp.launcher(fits, kwargs={})  # refused
xmp.launcher(fits, world_size=4, port="1")  # refused
xmp.init_process_group(30)  # refused
xmp.init_process_group("gloo", 30)  # refused
xmp.replica().rank = 1  # refused
dist.launcher(train, 2, 4, 2, "10.0.0.2", "23456")  # refused
dist.launcher(nprocs=2)  # refused
dist.get_rank()  # refused
xmp.testing.recorded_facts(8)  # refused
xmp.testing.fake_chips("8")  # refused
launchers.notebook_launcher(train, (0, 1), "2")  # refused
launchers.notebook_launcher(train, 0, 2)  # refused
launchers.notebook_launcher(train, (0, 1), nprocs=2)  # refused
launchers.notebook_launcher(train, (0, 1), 2, node_rank=None)  # refused
launchers.notebook_launcher(None, (), 2)  # refused
launchers.debug_launcher(train, (0, 1), num_processes=None)  # refused
launchers.debug_launcher(train, (0, 1), use_port="29501")  # refused
launchers.launch(train)  # refused
paddle_dist.spawn(no_rank, gpu="0")  # refused
xla.launch(train, nprocs=8)  # refused
xla.spawn(train, runtime="cpu")  # refused
