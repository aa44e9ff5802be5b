"""Two hosts that meet where variables or the call say, one launch after the other in two programs.

Each program's template imports torch: that is most of what such a launch costs.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.stage import Stage

PROGRAM = """
    import os, sys, warnings
    import in_script, xmp
    import xmp.compat.paddle

    index, *ports = map(int, sys.argv[1:])
    VARIABLES = {"NNODES": "2", "NODE_RANK": str(index), "MASTER_ADDR": "127.0.0.2"}

    def its_host(rank):
        import torch.distributed as dist

        group = xmp.local_group()
        place = xmp.rank(group), xmp.world_size(group), xmp.local_group() is group
        members = xmp.all_gather(rank, group)
        summed = xmp.all_reduce(rank, group=group), xmp.all_reduce(rank)
        sent = xmp.broadcast(rank, members[1], group)
        xmp.barrier()
        dist.destroy_process_group()
        again = xmp.all_gather(rank, xmp.local_group()) == members
        xmp.barrier()
        return [place, members, summed, sent, again]

    def local_groups():
        os.environ.update(VARIABLES, MASTER_PORT=str(ports[0]))
        seen = list(xmp.spawn(its_host, nprocs=2, runtime="cpu", timeout=60))
        for name in (*VARIABLES, "MASTER_PORT"):
            del os.environ[name]
        in_script.say(local_groups=seen)

    @xmp.launcher(
        nprocs=2, runtime="cpu", timeout=60,
        rank_start=2 * index, world_size=4, master_ip="127.0.0.2", port=ports[1],
    )
    def train(x):
        total = xmp.all_reduce(float(xmp.rank()))
        xmp.barrier()
        return xmp.rank(), xmp.host_index(), float(total) * x

    def launcher():
        before = dict(os.environ)
        results = train(2)
        in_script.say(launcher=[results, dict(os.environ) == before])

    def meet():
        return xmp.rank(), xmp.world_size(), xmp.all_reduce(1 + xmp.rank())

    def paddle():
        warnings.simplefilter("ignore")
        own = {"node_ip": f"127.0.0.{2 + index}", "started_port": ports[2], "runtime": "cpu"}
        context = xmp.compat.paddle.spawn(meet, nprocs=2, ips="127.0.0.2,127.0.0.3", **own)
        in_script.say(paddle=list(context.results()))

    if __name__ == "__main__":
        local_groups()
        launcher()
        paddle()
"""
Said = list[dict[str, Any]]


@pytest.fixture(scope="module")
def said(shared_stage: Stage) -> Said:
    """What the program says on each host."""
    with ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.2", 0))) for _ in range(3)]
        ports = [str(each.getsockname()[1]) for each in free]
    hosts = [shared_stage.start(PROGRAM, str(index), *ports) for index in range(2)]
    outcomes = [shared_stage.outcome(host, 120) for host in hosts]
    for outcome in outcomes:
        assert outcome.code == 0, outcome.err
    shared_stage.gone()
    return [outcome.said for outcome in outcomes]


def test_the_local_group_is_each_hosts_own(said: Said) -> None:
    for index, of_host in enumerate(said):
        ranks = [2 * index, 2 * index + 1]
        assert of_host["local_groups"] == [
            [[local, 2, True], ranks, [sum(ranks), 6], ranks[1], True] for local in range(2)
        ]


def test_a_launcher_meets_where_its_call_says(said: Said) -> None:
    for index, of_host in enumerate(said):
        ranks = (2 * index, 2 * index + 1)
        assert of_host["launcher"] == [[[rank, index, 12.0] for rank in ranks], True]


def test_paddles_spawn_makes_one_job_of_its_hosts(said: Said) -> None:
    found = [of_host["paddle"] for of_host in said]
    assert found == [[[rank, 4, 10] for rank in ranks] for ranks in ((0, 1), (2, 3))]
