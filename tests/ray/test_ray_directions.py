"""Which end connects, where a firewall stops one direction or both between driver and host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.driven_hosts import Driver
from tests.support.ray_hosts import RayCluster, cluster_on_network
from tests.support.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.root]

PORTS = "20000-20009"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with cluster_on_network(tmp_path_factory.mktemp("ray")) as made:
        made.make_whole(0, 1)
        yield made


@pytest.fixture
def nothing_left(clean_environment: None) -> None:
    """What is left of launches is looked for on the hosts; Ray's own processes stay there."""


@contextlib.contextmanager
def closed(cluster: RayCluster, *hosts: int) -> Iterator[Driver]:
    """Hosts that cannot connect to the ports at which the others' processes of xmp listen."""
    for index in hosts:
        cluster.hosts[index].close(PORTS)
    try:
        yield cluster.driver(XMP_AGENT_PORTS=PORTS)
    finally:
        for index in hosts:
            cluster.hosts[index].open()


@pytest.mark.parametrize("hosts", [(1,), (0,)], ids=["to the driver", "to the host"])
def test_one_direction_is_enough(cluster: RayCluster, hosts: tuple[int, ...]) -> None:
    with closed(cluster, *hosts) as driver:
        for _ in range(2):
            driver.launch("hostname")
            assert sorted(driver.results()) == ["h0", "h0", "h1", "h1"]
        assert driver.finish() == 0
        assert not cluster.left()


def test_neither_direction(cluster: RayCluster) -> None:
    with closed(cluster, 0, 1) as driver:
        driver.launch("hostname")
        error = driver.error()
        assert error["type"] == "StartError"
        first, second = (cluster.hosts[index].address for index in (0, 1))
        text = error["text"]
        assert text.startswith(
            "the agent of h1 did not start: h1 could not connect to the driver "
            f"at {first} port 2000"
        ), text
        assert f"(timed out), nor the driver to it at {second} port 20000 (timed out)" in text
        assert f"XMP_AGENT_PORTS={PORTS}" in text
        assert text.endswith("[XMP-H07]")
        until(lambda: "xmp-host" not in cluster.of_xmp().values(), 30, lambda: str(cluster))
    driver.launch("hostname")
    assert sorted(driver.results()) == ["h0", "h0", "h1", "h1"]
    assert driver.finish() == 0
    assert not cluster.left()
