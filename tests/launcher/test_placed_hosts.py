"""Two launchers that something has placed on two hosts: both play on this machine."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from tests.support.placed import said_of
from tests.support.stage import Stage
from tests.support.two_hosts import Two, below
from tests.support.waiting import until

pytestmark = pytest.mark.hosts


@pytest.fixture
def two(stage: Stage) -> Two:
    return Two(stage)


# By "forkserver": tests/replica/test_inside_hosts.py.
@pytest.mark.parametrize("method", ["fork"])
def test_their_replicas_are_one_world(two: Two, method: str) -> None:
    found = two.both("sums", start_method=method, env={"LOADED": "torch"})
    ranks = [[[0, 0], [1, 0]], [[2, 1], [3, 1]]]
    assert found == [[[*pair, 4, 6.0] for pair in host] for host in ranks]


def names_the_one_that_raised(said: tuple[str, str, dict[str, int], float]) -> None:
    name, text, where, _ = said
    assert name == "ReplicaRaised", text
    assert where["rank"] == 3
    assert "ValueError: no such label" in text
    assert 'raise ValueError("no such label")' in text


def test_both_name_the_replica_that_raised_amid_collectives_of_each_attempt(two: Two) -> None:
    for index in range(2):
        two.start(index, "fails_in_collectives", max_restarts=1)
    for outcome in two.ended():
        names_the_one_that_raised(said_of(outcome))
        assert re.search(r"restart 1 of 1: rank 3 on host 1 \(.+\) raised ", outcome.err)
    sums = {path.name: path.read_text() for path in two.stage.folder.glob("sum-*")}
    assert sums == {f"sum-{attempt}-{rank}": "6.0" for attempt in (0, 1) for rank in range(4)}


def test_both_name_the_replica_that_died(two: Two) -> None:
    for name, text, where, _ in two.both("dies"):
        assert (name, where["rank"]) == ("ReplicaDied", 3), text
        assert "SIGKILL" in text


@pytest.mark.parametrize(("whom", "index"), [("launcher", 0), ("supervisor", 1)])
def test_a_host_whose_launcher_or_supervisor_is_killed(two: Two, index: int, whom: str) -> None:
    for host in range(2):
        two.start(host, "waits")
    two.in_function()
    victim = two.launchers[index]
    killed = time.time()
    if whom == "launcher":
        victim.kill()
    else:
        [supervisor] = [pid for pid in two.stage.supervisors() if below(pid, victim.pid)]
        os.kill(supervisor, signal.SIGKILL)
    other = said_of(two.stage.outcome(two.launchers[1 - index], timeout=20))
    assert other[0] == "HostLost", other[1]
    assert f"host {index}" in other[1]
    assert other[3] - killed < 2 + 1 + 1  # grace is 1 s
    two.stage.outcome(victim, timeout=20)
    two.stage.gone()


def test_ctrl_c_on_one_host_ends_both(two: Two) -> None:
    for host in range(2):
        two.start(host, "waits")
    two.in_function()
    two.launchers[0].send_signal(signal.SIGINT)
    first, second = two.said()
    assert first[0] == "KeyboardInterrupt"
    assert second[0] == "HostLost"
    assert "host 0" in second[1]


def test_a_host_that_still_loads_when_another_fails(two: Two) -> None:
    two.start(0, "fails_when_the_other_loads", argv=["slow"])
    two.start(1, "fails_when_the_other_loads")
    for name, text, where, _ in two.said():
        assert (name, where["rank"]) == ("ReplicaRaised", 3), text


@pytest.mark.parametrize("index", [0, 1])
def test_a_launch_that_no_join_waits_for_ends_with_the_others(two: Two, index: int) -> None:
    for host in range(2):
        loaded = "unjoined" if host == index else ""
        two.start(host, "fails", env={"LOADED": loaded})
    names_the_one_that_raised(said_of(two.stage.outcome(two.launchers[1 - index], timeout=20)))
    until(lambda: not two.stage.replicas())
    (two.stage.folder / "go").touch()
    names_the_one_that_raised(said_of(two.stage.outcome(two.launchers[index], timeout=20)))
    two.stage.gone()


def test_a_stopped_carrier_process_ends_the_launch(two: Two) -> None:
    for host in range(2):
        two.start(host, "waits")
    two.in_function()
    carriers = two.stage.named("xmp-carrier")
    [stopped] = [pid for pid in carriers if below(pid, two.launchers[0].pid)]
    os.kill(stopped, signal.SIGSTOP)
    for name, text, _, _ in two.said():
        assert name == "HostLost", text
