"""Up to the first gloo all-reduce over Ray: ``xmp.launch``, and Ray Train's TorchTrainer.

Each driver has a cluster of its own on this machine, which is up before anything is measured.
"""

import os
import tempfile
import time

import torch
import torch.distributed as dist
from measured import Meeting, serve, system

if system() == "xmp":
    import xmp
else:
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

WORKERS = 4


def reduce(rank: int, meeting: Meeting) -> None:
    value = torch.ones(1)
    dist.all_reduce(value)
    meeting.mark(rank, at=time.monotonic_ns())
    assert value.item() == meeting.count


def replica(rank: int, meeting: Meeting) -> None:
    xmp.init_process_group()
    reduce(rank, meeting)


def worker(config: dict) -> None:
    reduce(ray.train.get_context().get_world_rank(), config["meeting"])


def launch(meeting: Meeting, folder: str) -> None:
    xmp.launch(
        replica, (meeting,), hosts=1, engine="ray", nprocs=meeting.count, runtime="cpu",
        backend="gloo", progress=False,
    )  # fmt: skip


def fit(meeting: Meeting, folder: str) -> None:
    trainer = TorchTrainer(
        worker,
        train_loop_config={"meeting": meeting},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=meeting.count),
        run_config=ray.train.RunConfig(storage_path=folder),
    )
    trainer.fit()


def main() -> None:
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    import ray

    # The paths of sockets have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="xb", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR", _temp_dir=folder,
        )  # fmt: skip
        run = {"xmp": launch, "TorchTrainer": fit}[system()]

        def measure(meeting: Meeting) -> dict[str, float]:
            called = time.monotonic_ns()
            run(meeting, folder)
            whole = time.monotonic_ns() - called
            return {"seconds": (max(meeting.times()) - called) / 1e9, "whole": whole / 1e9}

        serve(measure)
        ray.shutdown()


if __name__ == "__main__":
    main()
