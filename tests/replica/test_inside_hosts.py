"""What replicas can ask and do, on two hosts with two replicas each.

``tests/commands/test_run_hosts.py`` has ``xmp.data_parallel``: DistributedDataParallel costs each
replica an import of 2 s.
"""

from __future__ import annotations

import pytest

from tests.support.placed import Placed
from tests.support.stage import Stage

pytestmark = pytest.mark.hosts

PROGRAM = """
    import json, os, pathlib
    import in_script, xmp

    HERE = pathlib.Path(os.environ["FOLDER"])

    def noted(name):
        with open(HERE / name, "a") as file:
            file.write(f"{xmp.rank()}\\n")
        return xmp.rank()

    @xmp.rank_zero_only
    def first_alone():
        return noted("first")

    def fn(rank):
        here = xmp.replica()
        said = {
            "place": [rank, xmp.local_rank(), xmp.host_index(), xmp.world_size()],
            "replica": [here.rank, here.local_rank, here.host_index, here.world_size,
                        here.local_world_size],
            "gathered": xmp.all_gather(rank),
            "sum": float(xmp.all_reduce(float(rank))),
            "from 3": xmp.broadcast({"of": rank}, 3),
            "first alone": first_alone(),
            "once": xmp.once_per_host(lambda: noted(f"once-{xmp.host_index()}")),
        }
        for _ in range(2):
            xmp.init_process_group()
        import torch.distributed
        said["backend"] = torch.distributed.get_backend()
        xmp.barrier()
        said["noted"] = sorted(path.name for path in HERE.glob("once-*"))
        return said

    if __name__ == "__main__":
        print(json.dumps(list(xmp.spawn(fn, nprocs=2, runtime="cpu"))))
"""


def test_everything_spans_both_hosts(stage: Stage) -> None:
    placed = Placed(stage)
    for index in range(2):
        placed.program(PROGRAM, index=index)
    replicas = [each for host in placed.said(120) for each in host]
    for rank, each in enumerate(replicas):
        host, local = divmod(rank, 2)
        assert each == {
            "place": [rank, local, host, 4],
            "replica": [rank, local, host, 4, 2],
            "gathered": [0, 1, 2, 3],
            "sum": 6.0,
            "from 3": {"of": 3},
            "first alone": 0 if rank == 0 else None,
            "backend": "gloo",
            "once": 2 * host,
            "noted": ["once-0", "once-1"],
        }
    assert (stage.folder / "first").read_text() == "0\n"
    for host in range(2):
        assert len((stage.folder / f"once-{host}").read_text().splitlines()) == 1
