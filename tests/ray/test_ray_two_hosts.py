"""Two hosts of a real Ray cluster, each with a network of its own: one job, and how it fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.driven_hosts import GRACE, Driver
from tests.support.in_script import is_alive
from tests.support.ray_hosts import RayCluster, cluster_on_network
from tests.support.stage import slowness
from tests.support.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.root]

REPLICA, PROCESS, RAYLET, SILENCE = 1.0 + GRACE, 2.0 + GRACE, 5.0 + GRACE, 15.0
"""Seconds from a fault to the driver's error."""
STACKS = "where the living replicas are"
STOPPED = 16.0
"""Seconds for which a driver stands still: longer than any silence that ends a launch."""


def in_time(at: int, fault: int, limit: float, what: str) -> None:
    took = (at - fault) / 1e9
    assert took < limit or took < limit * slowness(), f"after {took:.2f} s: {what}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with cluster_on_network(tmp_path_factory.mktemp("ray")) as made:
        yield made


@pytest.fixture
def whole(cluster: RayCluster) -> Iterator[RayCluster]:
    cluster.make_whole(0, 1)
    yield cluster
    assert not cluster.end_drivers()


@pytest.fixture
def nothing_left(clean_environment: None) -> None:
    """What is left of launches is looked for on the hosts; Ray's own processes stay there."""


def waiting(cluster: RayCluster, function: str = "waits", **do: Any) -> Driver:
    driver = cluster.driver()
    driver.launch(function, **do)
    driver.in_function()
    return driver


def one_world(driver: Driver, function: str, runtime: str) -> None:
    driver.launch(function, runtime=runtime)
    assert [[rank, size, total] for rank, _, size, total in driver.results()] == [
        [rank, 4, 6.0] for rank in range(4)
    ]


def names_the_replica(driver: Driver, victim: int, how: str, words: str) -> None:
    driver.launch("waits", how=how, victim=victim)
    error = driver.error()
    in_time(error["at"], driver.fault(), REPLICA, error["text"])
    assert error["rank"] == victim
    assert words in error["text"]


def test_four_replicas_are_one_world(whole: RayCluster) -> None:
    driver = whole.driver()
    one_world(driver, "sums", "cpu")
    one_world(driver, "mesh", "jax")
    assert driver.finish() == 0
    assert not whole.left()


def test_the_driver_names_the_replica_that_failed(whole: RayCluster) -> None:
    """In agents whose templates import nothing beside: that can delay an end by 5 s."""
    driver = whole.driver()
    for how, words in (("raise", "raised ValueError"), ("SIGKILL", "was killed by SIGKILL")):
        for victim in (0, 3):
            names_the_replica(driver, victim, how, words)
    assert driver.finish() == 0
    assert not whole.left()


def test_an_agent_or_its_actor_is_killed(whole: RayCluster) -> None:
    driver = whole.driver()
    for index, what in enumerate(("agent", "actor")):
        driver.launch("waits")
        driver.in_function()
        replicas = whole.replicas(index)
        pid = whole.find(index, "xmp-agent") if what == "agent" else whole.actor(index)
        fault = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        error = driver.error()
        in_time(error["at"], fault, PROCESS, error["text"])
        assert (error["type"], error["host"]) == ("HostLost", f"h{index}")
        until(lambda pids=replicas: not any(map(is_alive_here, pids)), 2 * slowness())
        driver.launch("hostname")
        assert sorted(driver.results()) == ["h0", "h0", "h1", "h1"]


def is_alive_here(pid: int) -> bool:
    try:
        return is_alive(pid)
    except OSError:
        return False


def test_a_ctrl_c_ends_all_hosts_in_order(whole: RayCluster) -> None:
    driver = waiting(whole, "cleans", options={"grace": 30})  # however slow: they end by themselves
    fault = time.monotonic_ns()
    driver.signal(signal.SIGINT)
    error = driver.error()
    in_time(error["at"], fault, GRACE + 2, error["text"])
    assert error["type"] == "KeyboardInterrupt"
    assert len(list(driver.marks.glob("cleaned-*"))) == 4
    driver.process.wait(30)
    assert not whole.left()


def test_the_driver_is_killed(whole: RayCluster) -> None:
    driver = waiting(whole)
    driver.signal(signal.SIGKILL)
    assert not whole.left(2.0)


def test_a_raylet_is_killed(whole: RayCluster) -> None:
    driver = waiting(whole)
    fault = time.monotonic_ns()
    os.kill(whole.find(1, "raylet"), signal.SIGKILL)
    error = driver.error()
    in_time(error["at"], fault, RAYLET, error["text"])
    assert (error["type"], error["host"]) == ("HostLost", "h1")
    until(lambda: not whole.replicas(1), 2 * slowness())


def test_a_host_that_is_cut_off(whole: RayCluster) -> None:
    driver = waiting(whole)
    fault = time.monotonic_ns()
    whole.hosts[1].cut()
    error = driver.error()
    in_time(error["at"], fault, SILENCE, error["text"])
    assert error["type"] == "HostLost"
    until(lambda: not whole.replicas(1), SILENCE * slowness())
    in_time(time.monotonic_ns(), fault, SILENCE, "the isolated host's replicas")
    whole.stop(1)  # Ray itself takes a minute to see that it was away


def test_a_driver_that_stands_still_finds_its_job_going_on(whole: RayCluster) -> None:
    driver = waiting(whole)
    replicas = whole.replicas(1)
    driver.signal(signal.SIGSTOP)
    time.sleep(STOPPED)  # that nothing ends is what is tested
    driver.signal(signal.SIGCONT)
    for number in (1, 2):  # it hears both hosts again, and still
        driver.signal(signal.SIGQUIT)
        until(lambda n=number: driver.wrote().count(STACKS) == n, 30 * slowness(), driver.wrote)
    assert "no stacks" not in driver.wrote()
    assert not (driver.marks / "said").exists()
    assert whole.replicas(1) == replicas
    (driver.marks / "go").touch()


def test_a_dead_host_is_replaced_when_another_one_comes(whole: RayCluster) -> None:
    driver = waiting(whole, "once", options={"max_restarts": 1, "start_timeout": 120})
    whole.stop(1)
    until(lambda: not whole.replicas(0), 30 * slowness(), "the end of the other host's attempt")
    whole.start(1)
    said = driver.said()
    assert [found[:2] for found in said["results"]] == [[1, 4]] * 4, said
    assert sorted(said["hosts"]) == ["h0", "h1"]


def test_a_dead_host_without_another_one(whole: RayCluster) -> None:
    driver = whole.driver()
    driver.launch("hostname")  # its agents stay: what follows does not wait for hosts to start
    driver.results()
    driver.launch("once", options={"max_restarts": 1, "start_timeout": 10})
    driver.in_function()
    whole.stop(1)
    error = driver.error()
    assert error["type"] == "StartError"
    assert "within 10 s (start_timeout)" in error["text"]
    assert "is lost" in error["history"][0]
