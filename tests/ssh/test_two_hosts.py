"""Two machines that only ssh connects with the driver's: one job, and how it fails."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.driven_hosts import GRACE, Driver
from tests.support.ssh_hosts import SshHosts, hosts_on_network
from tests.support.stage import slowness

pytestmark = [pytest.mark.ssh, pytest.mark.netns, pytest.mark.root]

REPLICA, PROCESS, SILENCE = 1.0 + GRACE, 2.0 + GRACE, 15.0 + GRACE
"""Seconds from a fault to the driver's error."""


def in_time(at: int, fault: int, limit: float, what: str) -> None:
    took = (at - fault) / 1e9
    assert took < limit or took < limit * slowness(), f"after {took:.2f} s: {what}"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with hosts_on_network(tmp_path_factory.mktemp("ssh")) as made:
        yield made


@pytest.fixture
def hosts(network: SshHosts) -> Iterator[SshHosts]:
    network.whole()
    yield network
    assert not network.end_drivers()


@pytest.fixture
def nothing_left(clean_environment: None) -> None:
    """What is left of launches is looked for on the hosts."""


def waiting(hosts: SshHosts, function: str = "waits", **do: Any) -> Driver:
    driver = hosts.driver()
    driver.launch(function, **do)
    driver.in_function()
    return driver


def goes_on(driver: Driver) -> None:
    """The next launch of the same program has both hosts."""
    driver.launch("hostname")
    assert sorted(driver.results()) == ["h0", "h0", "h1", "h1"]


def test_four_replicas_are_one_world(hosts: SshHosts) -> None:
    driver = hosts.driver()
    for function, runtime in (("sums", "cpu"), ("mesh", "jax")):
        driver.launch(function, runtime=runtime)
        assert [[rank, size, total] for rank, _, size, total in driver.results()] == [
            [rank, 4, 6.0] for rank in range(4)
        ]
    assert driver.finish() == 0
    assert not hosts.left()


def test_the_driver_names_the_replica_that_failed(hosts: SshHosts) -> None:
    driver = hosts.driver()
    cases = (("raise", "raised ValueError"), ("exit", "exit code 17"), ("SIGKILL", "by SIGKILL"))
    for how, words in cases:
        for victim in (0, 3):
            driver.launch("waits", how=how, victim=victim)
            error = driver.error()
            in_time(error["at"], driver.fault(), REPLICA, error["text"])
            assert error["rank"] == victim
            assert words in error["text"]
    assert driver.finish() == 0
    assert not hosts.left()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xmp-agent", "was killed by SIGKILL"), ("xmp-supervisor", "supervisor"),
        ("xmp-host", "lost its connection"), ("xmp-link", "xmp-link was killed by SIGKILL"),
        ("ssh", "ssh was killed by SIGKILL"), ("sshd", "lost its connection"),
    ],
)  # fmt: skip
def test_what_is_between_driver_and_replicas_is_killed(
    hosts: SshHosts, name: str, words: str
) -> None:
    driver = waiting(hosts)
    at = 0 if name in ("xmp-link", "ssh") else 1
    victims = hosts.sessions(at) if name == "sshd" else [hosts.find(at, name)]
    fault = time.monotonic_ns()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    error = driver.error()
    in_time(error["at"], fault, PROCESS, error["text"])
    assert words in error["text"], error
    goes_on(driver)


def test_disks_of_hosts_are_full(hosts: SshHosts) -> None:
    """Nothing is lost that is shown, and the driver's disk gets as much as the hosts have kept."""
    driver = hosts.driver()
    driver.launch("floods", options={"log_dir": str(hosts.small), "gather_logs": True})
    assert driver.results() == [0, 1, 2, 3]
    # Standard error may say it within a line of standard output.
    said = re.compile(r"xmp: \S+ ends here: No space left on device\n")
    shown, warnings = said.subn("", driver.wrote())
    assert sum(len(line) == 106 for line in shown.splitlines()) == 8000
    assert warnings == 4
    kept = [path.stat().st_size for path in hosts.small.rglob("*.stdout.log")]
    assert (len(kept), sum(kept)) == (4, 2 * 64 << 10)
    goes_on(driver)


def test_log_files_of_a_host_come_though_its_agent_was_killed(hosts: SshHosts) -> None:
    options = {"log_dir": str(hosts.small), "gather_logs": True}
    driver = waiting(hosts, "says_and_waits", options=options)
    os.kill(hosts.find(1, "xmp-agent"), signal.SIGKILL)
    assert driver.error()["type"] == "HostLost"
    logs = [hosts.small / f"rank{rank}.stdout.log" for rank in range(4)]
    assert [log.read_text() for log in logs] == [f"says {rank}\n" for rank in range(4)]


def test_the_driver_is_killed(hosts: SshHosts) -> None:
    driver = waiting(hosts)
    driver.signal(signal.SIGKILL)
    assert not hosts.left(2.0)


def test_a_ctrl_c_ends_all_hosts_in_order(hosts: SshHosts) -> None:
    driver = waiting(hosts, "cleans", options={"grace": 30})  # however slow: they end by themselves
    fault = time.monotonic_ns()
    driver.signal(signal.SIGINT)
    error = driver.error()
    in_time(error["at"], fault, GRACE + 2, error["text"])
    assert error["type"] == "KeyboardInterrupt"
    assert len(list(driver.marks.glob("cleaned-*"))) == 4
    driver.process.wait(30)
    assert not hosts.left()


def test_the_link_is_cut_without_a_word(hosts: SshHosts) -> None:
    driver = waiting(hosts)
    fault = time.monotonic_ns()
    hosts.hosts[1].cut()
    error = driver.error()
    in_time(error["at"], fault, SILENCE, error["text"])
    assert (error["type"], error["host"]) == ("HostLost", "h1"), error
    assert not [name for place, name in hosts.left(SILENCE).items() if place.startswith("h1/")]


def test_a_lost_host_takes_part_again_after_a_restart(hosts: SshHosts) -> None:
    driver = waiting(hosts, "once", options={"max_restarts": 1})
    os.kill(hosts.find(1, "xmp-host"), signal.SIGKILL)
    assert driver.results() == [[1, 4, f"h{index // 2}"] for index in range(4)]
