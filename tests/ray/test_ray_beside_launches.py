"""What a program does with Ray beside its launches and in them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ray_cluster import RayCluster
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


PROGRAM = (
    BEGIN
    + """
def ended():
    job = xmp.launch(rank_of, join=False, **TWO)
    pids = job.pids()
    until(lambda: not any(map(is_alive, pids)), 30)
    return list(xmp.launch(rank_of, **{**TWO, "nprocs": 2})), list(job.results())

def of_main(rank):
    return rank, __name__

def launches():
    return list(xmp.launch(of_main, **TWO))

def of_a_task():
    return ray.get(ray.remote(num_cpus=0)(launches).remote())

class Program:
    def launches(self):
        with xmp.launch(rank_of, join=False, **TWO) as job:
            return [host.pid for host in job.hosts], list(job.results())

def of_an_actor():
    program = ray.remote(num_cpus=0)(Program).remote()
    (first, results), (second, _) = (ray.get(program.launches.remote()) for _ in range(2))
    ray.kill(program)
    until(lambda: not any(map(is_alive, first)), 10)
    return {"same": first == second, "results": results}

def uses_ray(rank, address):
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    return ray.get(ray.remote(num_cpus=0)(lambda: rank + 1).remote())

def in_replicas():
    return list(xmp.launch(uses_ray, (ray.get_runtime_context().gcs_address,), **TWO))

def awaited():
    many = {**TWO, "hosts": 9}
    return failure(lambda: xmp.launch(rank_of, timeout=1, start_timeout=60, **many))

def between():
    ray.shutdown()
    begin()
    return list(xmp.launch(rank_of, **TWO))

def in_one():
    job = xmp.launch(waits, sys.argv[1:], join=False, **TWO)
    agents = [host.pid for host in job.hosts]
    ray.shutdown()
    found = failure(job.join), ray.is_initialized()
    until(lambda: not any(map(is_alive, agents)), 10)
    return found

def placing():
    begin()
    threading.Timer(1, ray.shutdown).start()
    return failure(lambda: xmp.launch(rank_of, **{**TWO, "hosts": 9}))

def elsewhere():
    os.environ["RAY_ADDRESS"] = "nonsense"
    return failure(lambda: xmp.launch(rank_of, **TWO))

if __name__ == "__main__":
    begin()
    for each in (ended, of_a_task, of_an_actor, in_replicas, awaited):
        say(**{each.__name__: each()})
    say(between=[between(), between()])
    for each in (in_one, placing, elsewhere):
        say(**{each.__name__: each()})
"""
)


@pytest.fixture(scope="module")
def said(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the functions of one driver have found, and how slow this host was."""
    stage, slow = Stage(tmp_path_factory.mktemp("driver")), slowness()
    outcome = stage.outcome(stage.start(PROGRAM, str(stage.folder), env=cluster.env), 240)
    assert outcome.code == 0, outcome
    return {**outcome.said, "slow": slow}


def test_ray_shutdown_between_launches(said: dict[str, Any]) -> None:
    assert said["between"] == [[0, 1]] * 2


def test_ray_shutdown_in_a_launch(said: dict[str, Any]) -> None:
    (text, seconds), connected = said["in_one"]
    assert text.startswith("HostLost: host ")
    assert "cannot be reached: the program has called ray.shutdown()" in text
    assert seconds < 2 * said["slow"]
    assert connected is False
    assert said["placing"][0] == (
        "StartError: hosts=9: the program has called ray.shutdown() while xmp waited for the hosts "
        "[XMP-H06]"
    )


def test_a_job_that_has_ended_gives_its_hosts_to_the_next(said: dict[str, Any]) -> None:
    assert said["ended"] == [[0, 1, 2, 3], [0, 1]]


def test_timeout_counts_while_hosts_are_awaited(said: dict[str, Any]) -> None:
    text, seconds = said["awaited"]
    assert text.startswith(
        "ReplicaTimeout: hosts=9: no hosts within 1 s (timeout): the Ray cluster"
    )
    assert "or a longer timeout;" in text
    assert 1 <= seconds < 30


def test_an_address_that_is_none(said: dict[str, Any]) -> None:
    assert said["elsewhere"][0].startswith("PlanError: engine=\"ray\": RAY_ADDRESS='nonsense': ")


# --- Ray's own tasks and actors ------------------------------------------------------------------


def test_a_task_of_ray_launches(said: dict[str, Any]) -> None:
    assert said["of_a_task"] == [[0, "__main__"], [1, "__main__"]]


def test_agents_stay_for_the_launches_of_an_actor(said: dict[str, Any]) -> None:
    assert said["of_an_actor"] == {"same": True, "results": [0, 1]}


def test_ray_in_replicas(said: dict[str, Any]) -> None:
    assert said["in_replicas"] == [1, 2]
