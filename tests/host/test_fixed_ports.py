"""Several hosts meet at a fixed port, launch after launch; one machine plays two hosts here."""

from __future__ import annotations

import socket

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.failing

LAUNCHES = """
    import sys
    import in_script, xmp

    xmp.preload("torch", "jax")  # once for each host, and not once for each replica

    def total(rank):
        xmp.init_process_group()
        found = xmp.all_reduce(float(rank))
        xmp.barrier()
        return float(found)

    if __name__ == "__main__":
        for number, runtime in enumerate(("cpu", "cpu", "jax", "cpu")):
            results = xmp.spawn(total, nprocs=2, runtime=runtime, timeout=60)
            in_script.say(**{f"launch {number}": list(results)})
"""


def test_torch_and_jax_meet_in_turn_where_the_others_have_just_left(stage: Stage) -> None:
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = str(free.getsockname()[1])
    common = {"NNODES": "2", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": port}
    environments = [{**common, "NODE_RANK": str(index)} for index in range(2)]
    hosts = [stage.start(LAUNCHES, env=env) for env in environments]
    for host in hosts:
        outcome = stage.outcome(host, 120)
        assert outcome.code == 0, outcome.err
        assert outcome.said == {f"launch {number}": [6.0, 6.0] for number in range(4)}
    stage.gone()
