"""What the options of ``launch`` mean over the hosts of a Ray cluster."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.ray_cluster import RayCluster
from tests.support.stage import Outcome, Stage

pytestmark = pytest.mark.ray

HERE = platform.node()


OPTIONS = """
    import os, random
    import xmp
    from in_script import never_returns, say

    TWO = {"hosts": 2, "engine": "ray", "nprocs": 2, "runtime": "cpu", "progress": False}

    def looks(rank, factor, *, word):
        print(word, rank, flush=True)
        names = ("MINE", "OMP_NUM_THREADS")
        cores = len(os.sched_getaffinity(0))
        return rank * factor, random.random(), [os.environ.get(name) for name in names], cores

    def place(rank):
        return xmp.host_index(), xmp.local_rank()

    def waits(rank):
        never_returns()

    def interpreter(rank):
        return open("/proc/self/cmdline").read().count("resource_tracker"), os.environ["LOCAL"]

    def error_of(fn, **options):
        try:
            xmp.launch(fn, **{**TWO, **options})
        except (xmp.XmpError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    def many():
        events = []
        results = xmp.launch(
            looks, [3], kwargs={"word": "said"}, env={"MINE": "m"}, seed=3, threads=1, bind=True,
            show=[3], prefix="{rank}> ", events=events.append, timeout=100, start_timeout=90,
            hang_timeout=80, grace=2, backend="gloo", daemon=False, **TWO,
        )
        names = [event.name for event in events]
        return {
            "values": [each[0] for each in results],
            "seeds": len({each[1] for each in results}),
            "variables": sorted({tuple(each[2]) for each in results}),
            "cores": sorted({each[3] for each in results}),
            "events": [names.count(name) for name in ("planned", "returned", "finished")],
        }

    def methods():
        own = lambda local: {"LOCAL": str(local)}
        results = xmp.launch(interpreter, start_method="spawn", env=own, **TWO)
        return [local for _, local in results]

    def jobs():
        with xmp.launch(place, join=False, **TWO) as job:
            said = [job.results().by_rank, [(h.index, h.pid > 0) for h in job.hosts], repr(job)]
        job = xmp.launch(waits, join=False, grace=0.5, daemon=True, **TWO)
        stacks = job.stacks()
        job.terminate()
        return [*said, sorted(stacks), "waits" in stacks[3]]

    def limits():
        return [error_of(waits, timeout=2, grace=0.5), error_of(waits, hang_timeout=1, grace=0.5)]

    def refusals():
        return [
            error_of(place, start_method="fork"),
            error_of(place, env=lambda local: {}, nprocs=None),
            error_of(place, show=[4]),
            error_of(place, devices=[0]),
            error_of(place, runtime="cuda"),
            error_of(place, runtime_env={"pips": []}),
        ]

    if __name__ == "__main__":
        for each in (many, methods, jobs, limits, refusals):
            say(**{each.__name__: each()})
"""


@pytest.fixture(scope="module")
def outcome(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What the functions of one driver return, and the lines that replicas print."""
    return Stage(tmp_path_factory.mktemp("driver")).run(OPTIONS, env=cluster.env, timeout=150)


def test_options_of_hosts_and_replicas(outcome: Outcome) -> None:
    assert outcome.said["many"] == {
        "values": [0, 3, 6, 9],
        "seeds": 1,
        "variables": [["m", "1"]],
        "cores": [1],
        "events": [1, 4, 1],
    }
    assert [line for line in outcome.out.splitlines() if line[0] != "@"] == ["3> said 3"]


def test_fresh_interpreters_and_variables_of_each_local_rank(outcome: Outcome) -> None:
    assert outcome.said["methods"] == ["0", "1", "0", "1"]


def test_a_job(outcome: Outcome) -> None:
    by_rank, hosts, text, ranks, deep = outcome.said["jobs"]
    assert by_rank == {"0": [0, 0], "1": [0, 1], "2": [1, 0], "3": [1, 1]}
    assert hosts == [[0, True], [1, True]]
    assert "on 2 hosts" in text
    assert (ranks, deep) == ([0, 1, 2, 3], True)


def test_limits(outcome: Outcome) -> None:
    timeout, hang = outcome.said["limits"]
    assert timeout.startswith("ReplicaTimeout: ")
    assert "timeout=2" in timeout or "within 2 s (timeout)" in timeout, timeout
    assert hang.startswith("ReplicaTimeout: ")
    assert "hang_timeout=1" in hang


def test_what_makes_no_sense_is_refused(outcome: Outcome) -> None:
    fork, env, show, devices, cuda, prepared = outcome.said["refusals"]
    assert fork.startswith('PlanError: start_method="fork" with engine=')
    assert env.startswith("PlanError: env= as a function with engine='ray' and no nprocs=")
    assert "there is no rank 4; this launch has the ranks 0 to 3" in show
    assert devices.startswith(f"PlanError: host {HERE} (127.0.0.")
    assert "): devices=[0] was given, but runtime 'cpu' has no devices to choose from" in devices
    assert cuda.startswith(
        "PlanError: hosts=2: the runtime needs a GPU on each host, and Ray counts none on "
        f"{HERE} (127.0.0.2), {HERE} (127.0.0.3). Start Ray on hosts with GPUs"
    ), cuda
    assert "pips" in prepared


HEAD = "f" * 56
"""The node id by which a fake autoscaler knows the head."""
SETTINGS = (
    *("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands"),
    *("setup_commands", "head_setup_commands", "worker_setup_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands"),
)
"""What Ray asks of a configuration, although its fake hosts need none of it (Ray 2.60)."""


@pytest.fixture
def growing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A cluster of one node whose autoscaler can add one with GPUs."""
    folder = tmp_path_factory.mktemp("growing")
    path = folder / "autoscaler.json"
    env = {
        "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
    }  # fmt: skip
    cluster = RayCluster(Stage(folder))
    path.write_text(json.dumps(autoscaling(cluster.address)))
    try:
        cluster.add(env=env, options=(f"--autoscaling-config={path}",))
        yield cluster
    finally:
        cluster.close()


def autoscaling(address: str) -> dict[str, Any]:
    types = {
        "ray.head.default": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        "gpus": {"resources": {"CPU": 2, "GPU": 2}, "node_config": {}, "max_workers": 1},
    }
    provider = {"type": "fake_multinode", "gcs_address": address, "head_node_id": HEAD}
    return {
        **dict.fromkeys(SETTINGS, ()), "cluster_name": "fake", "max_workers": 1,
        "upscaling_speed": 1.0, "idle_timeout_minutes": 1, "provider": provider, "auth": {},
        "available_node_types": types, "head_node_type": "ray.head.default", "file_mounts": {},
        "file_mounts_sync_continuously": False, "head_node": {}, "worker_nodes": {},
    }  # fmt: skip


GROWS = """
    import ray, xmp
    from in_script import say
    from tests.support.waiting import until
    from xmp.plugins.ray import shortage

    if __name__ == "__main__":
        ray.init(log_to_driver=False)
        until(shortage._status, 30)
        try:
            xmp.launch(print, engine="ray", hosts=1, nprocs=1, runtime="cuda", progress=False)
        except xmp.PlanError as error:
            say(error=str(error), gpus=ray.cluster_resources()["GPU"])
"""


def test_a_host_with_gpus_that_an_autoscaler_adds(stage: Stage, growing: RayCluster) -> None:
    outcome = stage.run(GROWS, env=growing.env, timeout=100)
    waits = "hosts=1: each host is asked for 1 GPU, 1 CPU, which 0 of 1 hosts have; xmp waits up to"
    assert waits in outcome.err
    assert outcome.said["gpus"] == 2
    assert "has no GPU that runtime 'cuda' may use" in outcome.said["error"], "they are not there"
