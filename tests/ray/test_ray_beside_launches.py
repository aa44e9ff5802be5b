"""What a program does with Ray beside its launches and in them; what may happen to a raylet."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.ray_cluster import RayCluster, cluster_of
from tests.support.stage import Stage, slowness

pytestmark = pytest.mark.ray

BEGIN = """
import os, sys, threading, time
import ray, xmp
from in_script import is_alive, never_returns, say
from waiting import until

TWO = dict(engine="ray", hosts=2, nprocs=1, runtime="cpu", progress=False)

def rank_of(rank):
    return rank

def waits(rank, folder):
    open(f"{folder}/in-fn-{rank}", "w").close()
    never_returns()

def failure(call):
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        return [f"{type(error).__name__}: {error}", time.monotonic() - begun]

def begin():
    ray.init(log_to_driver=False, logging_level="ERROR")
"""


def test_ray_shutdown_between_launches_and_in_one(stage: Stage, cluster: RayCluster) -> None:
    program = (
        BEGIN
        + """
if __name__ == "__main__":
    found = []
    for _ in range(3):
        begin()
        found.append(list(xmp.launch(rank_of, **TWO)))
        ray.shutdown()
    say(found=found)
    begin()
    job = xmp.launch(waits, sys.argv[1:], join=False, **TWO)
    agents = [host.pid for host in job.hosts]
    ray.shutdown()
    say(lost=failure(job.join), connected=ray.is_initialized())
    until(lambda: not any(map(is_alive, agents)), 10)
    begin()
    threading.Timer(1, ray.shutdown).start()
    say(placing=failure(lambda: xmp.launch(rank_of, **{**TWO, "hosts": 9})))
"""
    )
    slow = slowness()
    outcome = stage.outcome(stage.start(program, str(stage.folder), env=cluster.env), 120)
    assert outcome.code == 0, outcome
    said = outcome.said
    assert said["found"] == [[0, 1]] * 3
    text, seconds = said["lost"]
    assert text.startswith("HostLost: host ")
    assert "cannot be reached: the program has called ray.shutdown()" in text
    assert seconds < 2 * slow
    assert said["connected"] is False
    assert said["placing"][0] == (
        "StartError: hosts=9: the program has called ray.shutdown() while xmp waited for the hosts "
        "[XMP-H06]"
    )


def test_a_job_that_has_ended_gives_its_hosts_to_the_next(
    stage: Stage, cluster: RayCluster
) -> None:
    program = (
        BEGIN
        + """
if __name__ == "__main__":
    begin()
    job = xmp.launch(rank_of, join=False, **TWO)
    pids = job.pids()
    until(lambda: not any(map(is_alive, pids)), 30)
    say(more=list(xmp.launch(rank_of, **{**TWO, "nprocs": 2})), joined=list(job.results()))
"""
    )
    outcome = stage.outcome(stage.start(program, env=cluster.env), 120)
    assert outcome.said == {"more": [0, 1, 2, 3], "joined": [0, 1]}, outcome


def test_timeout_counts_while_hosts_are_awaited(stage: Stage, cluster: RayCluster) -> None:
    program = (
        BEGIN
        + """
if __name__ == "__main__":
    begin()
    many = {**TWO, "hosts": 9}
    say(found=failure(lambda: xmp.launch(rank_of, timeout=1, start_timeout=60, **many)))
    os.environ["RAY_ADDRESS"] = "nonsense"
    ray.shutdown()
    say(address=failure(lambda: xmp.launch(rank_of, **TWO)))
"""
    )
    said = stage.outcome(stage.start(program, env=cluster.env), 120).said
    text, seconds = said["found"]
    assert text.startswith(
        "ReplicaTimeout: hosts=9: no hosts within 1 s (timeout): the Ray cluster"
    )
    assert "or a longer timeout;" in text
    assert 1 <= seconds < 30
    assert said["address"][0].startswith("PlanError: engine=\"ray\": RAY_ADDRESS='nonsense': ")


def test_a_raylet_that_nothing_has_waited_for(stage: Stage, tmp_path: Path) -> None:
    """It is a zombie, which Ray takes as alive; its cluster would give the host up after 13 s."""
    program = (
        BEGIN
        + """
if __name__ == "__main__":
    begin()
    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes()}
    hosts = [nodes["127.0.0.2"], nodes["127.0.0.3"]]
    job = xmp.launch(waits, sys.argv[1:], join=False, **{**TWO, "hosts": hosts, "grace": 1})
    say(lost=failure(job.join))
"""
    )
    with cluster_of(tmp_path, {}, {}) as cluster:
        node = cluster.nodes[1]
        (raylet,) = (each for each in _below(node.pid) if each.name() == "raylet")
        driver = stage.start(program, str(stage.folder), env=cluster.env)
        stage.in_function(driver, 2)
        parent = raylet.ppid()
        os.kill(parent, signal.SIGSTOP)
        slow = slowness()
        raylet.kill()
        text, seconds = stage.outcome(driver, 60).said["lost"]
        os.kill(parent, signal.SIGCONT)
    assert text.startswith("HostLost: host 1 ")
    assert "was ended, as the raylet of its host has ended" in text
    assert seconds < (5 + 1) * slow


def _below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


# --- Ray's own tasks and actors ------------------------------------------------------------------


def said_by(stage: Stage, cluster: RayCluster, source: str) -> dict[str, Any]:
    return stage.outcome(stage.start(BEGIN + source, env=cluster.env), 90).said


def test_a_task_of_ray_launches(stage: Stage, cluster: RayCluster) -> None:
    source = """
def function(rank):
    return rank, __name__

def launches():
    return list(xmp.launch(function, **TWO))

if __name__ == "__main__":
    begin()
    say(found=ray.get(ray.remote(num_cpus=0)(launches).remote()))
"""
    assert said_by(stage, cluster, source) == {"found": [[0, "__main__"], [1, "__main__"]]}


def test_agents_stay_for_the_launches_of_an_actor(stage: Stage, cluster: RayCluster) -> None:
    source = """
def function(rank):
    return rank

class Program:
    def launches(self):
        with xmp.launch(function, join=False, **TWO) as job:
            return [host.pid for host in job.hosts], list(job.results())

if __name__ == "__main__":
    begin()
    program = ray.remote(num_cpus=0)(Program).remote()
    (first, results), (second, _) = (ray.get(program.launches.remote()) for _ in range(2))
    say(same=first == second, results=results)
    ray.kill(program)
    until(lambda: not any(map(is_alive, first)), 10)
"""
    assert said_by(stage, cluster, source) == {
        "same": True,
        "results": [0, 1],
    }


def test_ray_in_replicas(stage: Stage, cluster: RayCluster) -> None:
    source = """
def function(rank, address):
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    return ray.get(ray.remote(num_cpus=0)(lambda: rank + 1).remote())

if __name__ == "__main__":
    begin()
    say(found=list(xmp.launch(function, (ray.get_runtime_context().gcs_address,), **TWO)))
"""
    assert said_by(stage, cluster, source) == {"found": [1, 2]}
