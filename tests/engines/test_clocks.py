"""Times of hosts whose clocks differ from the driver's."""

from __future__ import annotations

import pytest

from xmp._hosts.engines.clocks import HostClock, as_here
from xmp._processes.messages.launch import Events, ReplicaEntered, ReplicasStarted

pytestmark = pytest.mark.hosts

AHEAD = 1_000_000_000_000


def test_the_shortest_round_trip_counts() -> None:
    clock = HostClock()
    for before, after in ((900, 10), (50, 70), (5, 2_000)):
        clock.measured(10_000 - before, 10_000 + AHEAD, 10_000 + after)
    assert abs(clock.ahead - AHEAD) <= clock.uncertainty <= 10


def test_what_was_known_before_a_host_slept_is_dropped() -> None:
    clock = HostClock()
    clock.measured(0, AHEAD, 10)
    clock.measured(1_000, 5_000, 1_010)
    assert abs(clock.ahead - 4_000) <= 10


def test_times_become_the_drivers_and_zero_stays() -> None:
    clock = HostClock()
    clock.measured(0, AHEAD, 0)
    started = ReplicasStarted(1, [(0, 2, AHEAD + 7)], AHEAD + 5, 0)
    assert as_here(started, clock, 1) == ReplicasStarted(1, [(0, 2, 7)], 5, 0)
    assert as_here(ReplicaEntered(0, AHEAD + 3), clock, 1) == ReplicaEntered(0, 3)
    events = as_here(Events([("forked", AHEAD + 9, 0, 2)]), clock, 1)
    assert events == Events([("forked", 9, 0, 2)])
