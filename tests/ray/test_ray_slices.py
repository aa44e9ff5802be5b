"""A TPU slice in a Ray cluster: its hosts in worker order, each with the plan of a placed host.

The slice is faked, as Ray itself finds slices: by variables of its nodes. What no machine without
TPUs has, chips and the packages that use them, is added to what the hosts say of themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_cluster import RayCluster, cluster_of
from tests.support.stage import Stage
from xmp._plan import planner
from xmp._words.types import Request
from xmp.testing import recorded_facts

pytestmark = pytest.mark.ray

WORKERS = (2, 0, 3, 1)
"""The worker ids of the nodes, in the order in which these join."""
SLICE = {"TPU_NAME": "my-tpu", "TPU_ACCELERATOR_TYPE": "v6e-16", "TPU_TOPOLOGY": "4x4"}
RUNTIMES = ("pjrt", "jax", "torch_tpu")
GOLDEN = Path(__file__).parents[1] / "plans" / "v6e-16.plans.json"

DRIVER = """
    import json
    import os
    from dataclasses import replace
    from types import SimpleNamespace

    import ray
    import xmp
    from xmp._plan import planner
    from xmp._hosts.engines import driver
    from xmp.plugins.ray.engine import engine
    from xmp._words.types import Request
    from xmp.testing import recorded_facts
    from in_script import say

    def hosts(asked):
        call = SimpleNamespace(settings=SimpleNamespace(limits=None, start_method="spawn"))
        return engine.group(engine.checked(asked), Request(), call)

    def with_chips(group):
        # The chips and packages of a recorded worker; all else is what the hosts say.
        real = recorded_facts("v6e-16")
        found = [
            host._replace(facts=replace(
                host.facts, tpu=real.tpu, frameworks=real.frameworks, cpus=real.cpus,
                cpu_quota=None,
            ))
            for host in group.hosts
        ]
        return SimpleNamespace(hosts=found)

    def plans(group):
        for runtime in ("pjrt", "jax", "torch_tpu"):
            yield runtime, planner.to_json(driver._whole(Request(runtime=runtime), group))

    def refused(**options):
        try:
            xmp.launch(print, engine="ray", **options)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def rank(rank):
        return int(os.environ["TPU_WORKER_ID"]), "TPU_VISIBLE_CHIPS" in os.environ

    if __name__ == "__main__":
        for name, asked in (("topology", "v6e:4x4"), ("count", 4)):
            group = hosts(asked)
            ids = [host.facts.env["TPU_WORKER_ID"] for host in group.hosts]
            addresses = [host.address for host in group.hosts]
            say(**{name: [ids, addresses, dict(plans(with_chips(group)))]})
            group.release(lost=False)
        launched = xmp.launch(rank, engine="ray", hosts=4, nprocs=1, progress=False)
        say(launched=list(launched))
        again = xmp.launch(rank, engine="ray", hosts=4, nprocs=1, progress=False)
        say(kept=list(again))
        say(unused=refused(hosts="v6e:4x4", nprocs=1))

        part = hosts(2)
        try:
            dict(plans(with_chips(part)))
        except xmp.PlanError as error:
            say(part=str(error))
        part.release(lost=False)
        xmp.shutdown()

        other = ray.util.placement_group([{"TPU-v6e-16-head": 1}], name="theirs")
        ray.get(other.ready())
        say(taken=refused(hosts="v6e:4x4", start_timeout=1))
        ray.util.remove_placement_group(other)
        say(absent=refused(hosts="v6e:8x8", start_timeout=1))
        say(without=refused(hosts="v6e:4x4", runtime="cuda"))
        groups = ray.util.placement_group_table().values()
        say(left=[each["name"] for each in groups if each["state"] != "REMOVED"])
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    nodes = [
        {"cpus": 1, "resources": {"TPU": 4}, "env": {**SLICE, "TPU_WORKER_ID": str(worker)}}
        for worker in WORKERS
    ]
    with cluster_of(tmp_path_factory.mktemp("slice"), *nodes) as made:
        yield made


@pytest.fixture(scope="module")
def said(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one driver has found; all of it has ended with it."""
    stage = Stage(tmp_path_factory.mktemp("driver"))
    outcome = stage.run(DRIVER, env=cluster.env, timeout=120)
    return {**outcome.said, "err": outcome.err}


def address(worker: int) -> str:
    return f"127.0.0.{2 + WORKERS.index(worker)}"


ADDRESSES = [address(worker) for worker in range(4)]


def placed(runtime: str, worker: int) -> list[dict[str, Any]]:
    """The hosts of the plan that a launcher on this worker makes, by the variables of GKE."""
    env = {
        **SLICE,
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": ",".join(ADDRESSES),
    }
    facts = replace(recorded_facts("v6e-16"), env=env, metadata={}, address=ADDRESSES[worker])
    made: list[dict[str, Any]] = planner.to_json(planner.plan(Request(runtime=runtime), facts))[
        "hosts"
    ]
    return made


@pytest.mark.parametrize("asked", ["topology", "count"])
def test_hosts_come_in_worker_order(said: dict[str, Any], asked: str) -> None:
    ids, addresses, _ = said[asked]
    assert ids == ["0", "1", "2", "3"]
    assert addresses == ADDRESSES != sorted(ADDRESSES)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("asked", ["topology", "count"])
def test_each_host_has_the_plan_of_a_placed_one(
    said: dict[str, Any], asked: str, runtime: str
) -> None:
    plan = said[asked][2][runtime]
    expected = [host for worker in range(4) for host in placed(runtime, worker)]
    assert plan["hosts"] == expected
    ranks = [replica["rank"] for host in expected for replica in host["replicas"]]
    assert ranks == [*range(len(ranks))]
    assert plan["world_size"] == len(ranks)


FROM_VARIABLES = {
    *("TPU_ACCELERATOR_TYPE", "TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES"),
    "GLOO_SOCKET_IFNAME",  # the addresses of the test are of loopback
}
"""What replicas get in addition where variables describe the slice, and no metadata server."""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_worker_2_has_the_golden_plan(said: dict[str, Any], runtime: str) -> None:
    text = GOLDEN.read_text()
    for worker in range(4):
        text = text.replace(f'"10.128.0.{9 + worker}"', f'"{ADDRESSES[worker]}"')
        text = text.replace(f"10.128.0.{9 + worker}:", f"{ADDRESSES[worker]}:")
    golden = next(c["plan"] for c in json.loads(text) if c["request"] == {"runtime": runtime})
    own, recorded = said["topology"][2][runtime]["hosts"][2], golden["hosts"][0]
    assert (own["index"], own["address"]) == (2, ADDRESSES[2])
    assert len(own["replicas"]) == len(recorded["replicas"]) == 4
    for replica, other in zip(own["replicas"], recorded["replicas"]):
        assert other["set"].items() <= replica["set"].items()
        assert {*replica["set"]} - {*other["set"]} <= FROM_VARIABLES
        assert {**replica, "set": 0, "unset": 0} == {**other, "set": 0, "unset": 0}


def test_replicas_have_no_variables_of_ray(said: dict[str, Any]) -> None:
    assert said["launched"] == said["kept"] == [[worker, False] for worker in range(4)]


def test_a_slice_whose_chips_nothing_would_use(said: dict[str, Any]) -> None:
    text = said["unused"]
    assert text.startswith("PlanError: hosts='v6e:4x4': "), text
    assert " would run on cpu with runtime 'cpu' (no accelerator that an installed" in text
    assert 'Install there what uses them (`pip install "jax[tpu]"` or ' in text


def test_a_part_of_a_slice_is_refused(said: dict[str, Any]) -> None:
    assert "hosts=2 says host" in said["part"]
    assert "but the TPU runtime says worker" in said["part"]
    assert "of 4. Name the hosts of the whole slice" in said["part"]


def test_a_slice_that_another_job_has(said: dict[str, Any]) -> None:
    assert said["taken"].startswith(
        "StartError: hosts='v6e:4x4': no hosts within 1 s (start_timeout): what it asks of them is "
        "in use (4 TPU, 1 CPU each). Give fewer hosts"
    )


def test_a_slice_that_the_cluster_does_not_have(said: dict[str, Any]) -> None:
    expected = (
        "StartError: hosts='v6e:8x8': no hosts within 1 s (start_timeout): the Ray cluster has 0 "
        "of the slice's 16 hosts; its TPU hosts are of v6e-16. Give "
    )
    assert said["absent"].startswith(expected)
    warning = "xmp: hosts='v6e:8x8': the Ray cluster has 0 of the slice's 16 hosts"
    assert warning in said["err"]
    assert "PlanError: hosts='v6e:4x4' with runtime='cuda'" in said["without"]


def test_nothing_stays_reserved(said: dict[str, Any]) -> None:
    assert said["left"] == []
