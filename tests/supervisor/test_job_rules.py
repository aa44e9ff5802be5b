"""The rules of a driver for the hosts of a launch, as tables of events and actions."""

from __future__ import annotations

import pytest

from xmp._rules.job_rules import (
    OTHERS_WAIT,
    SILENCE,
    AskedToEnd,
    HostAnswered,
    HostDone,
    HostEnded,
    JobEvent,
    JobRules,
    KillAll,
    Looked,
    PortsFound,
    Preempted,
)

SECOND = 1_000_000_000
STOP = AskedToEnd(at=0, within=5 * SECOND)
LATE = 5 * SECOND + OTHERS_WAIT


def done(events: list[JobEvent], hosts: int = 3) -> list[str]:
    """Begin, feed the events; return "what host value" for each action after the first."""
    rules = JobRules(hosts)
    actions = [*rules.begin(), *(action for event in events for action in rules.feed(event))]
    lines = []
    for action in actions:
        host = f" {action.host}" if action.host >= 0 else ""
        lines.append(f"{action.name}{host}" + (f" {action.value}" if action.value else ""))
    assert lines.pop(0) == "start 0"
    return lines


def stopped(second: int, *hosts: int) -> Looked:
    return Looked(second * SECOND, frozenset(hosts))


LIMIT = SILENCE // SECOND
PORTS = PortsFound(4000)
ALL_STARTED = ["start 1 4000", "start 2 4000"]

TABLE: dict[str, tuple[list[JobEvent], list[str]]] = {
    "the others come when host 0 holds the ports": ([PORTS], ALL_STARTED),
    "a host that has ended meanwhile is not started": (
        [HostEnded(1, failed=True), PORTS], ["stop", "start 2 4000"],
    ),
    "all hosts end well": ([PORTS, HostEnded(0), HostEnded(1), HostEnded(2)], ALL_STARTED),
    "a host fails": ([PORTS, HostEnded(1, failed=True)], [*ALL_STARTED, "stop"]),
    "asked to end before the others have an order": ([STOP, PORTS], ["unstarted 1", "unstarted 2"]),
    "asked to end twice": ([STOP, STOP], ["unstarted 1", "unstarted 2"]),
    "one has not ended in time": (
        [PORTS, STOP, HostEnded(0), HostEnded(2), Looked(LATE - 1), Looked(LATE)],
        [*ALL_STARTED, "kill 1"],
    ),
    "a later request gives no more time": (
        [PORTS, STOP, AskedToEnd(LATE - 1, 9), HostEnded(0), HostEnded(2), Looked(LATE)],
        [*ALL_STARTED, "kill 1"],
    ),
    "no host was asked to end": ([PORTS, Looked(1000 * LATE)], ALL_STARTED),
    "the launcher waits no longer": (
        [PORTS, HostEnded(0), KillAll(), Looked(1)], [*ALL_STARTED, "kill 1", "kill 2"],
    ),
    "the launcher waits no longer for an agent that is stopped": (
        [PORTS, stopped(0, 1), KillAll(), HostEnded(0), HostEnded(2), stopped(LIMIT, 1)],
        [*ALL_STARTED, "give up 1", "kill 1"],
    ),
    "an agent that is stopped is given up": (
        [PORTS, stopped(0, 1), stopped(LIMIT - 1, 1), stopped(LIMIT, 1)],
        [*ALL_STARTED, "give up 1"],
    ),
    "an agent that was continued meanwhile is not": (
        [PORTS, stopped(0, 1), stopped(LIMIT - 1), stopped(LIMIT, 1), stopped(LIMIT + 3, 1)],
        ALL_STARTED,
    ),
    "an agent that ended while it was stopped is not": (
        [PORTS, stopped(0, 1), HostEnded(1), stopped(LIMIT, 1)], ALL_STARTED,
    ),
    "no SIGTERM, no answer": (
        [PORTS, *(HostAnswered(n, agreed=True) for n in range(3))], ALL_STARTED,
    ),
    "SIGTERM, all agree": (
        [PORTS, Preempted(), *(HostAnswered(n, agreed=True) for n in range(3))],
        [*ALL_STARTED, "preempted 1"],
    ),
    "SIGTERM, one does not": (
        [PORTS, Preempted(), *(HostAnswered(n, agreed=n != 1) for n in range(3))],
        [*ALL_STARTED, "preempted"],
    ),
    "SIGTERM, none agrees, and all return nevertheless": (
        [PORTS, Preempted(), *(HostAnswered(n, agreed=False) for n in range(3)),
         *(HostDone(n, complete=True) for n in range(3))],
        [*ALL_STARTED, "preempted", "preempted", "preempted", "preempted 1"],
    ),
    "SIGTERM, and one has returned": (
        [PORTS, HostDone(1, complete=True), Preempted(), HostAnswered(0, agreed=True),
         HostAnswered(2, agreed=True)],
        [*ALL_STARTED, "preempted 1"],
    ),
    "SIGTERM, and the last one returns instead of an answer": (
        [PORTS, Preempted(), HostAnswered(0, agreed=True), HostAnswered(2, agreed=True),
         HostDone(1, complete=True)],
        [*ALL_STARTED, "preempted 1"],
    ),
    "SIGTERM, and one has ended without an answer": (
        [PORTS, Preempted(), HostEnded(1), HostAnswered(0, agreed=True),
         HostAnswered(2, agreed=True)],
        [*ALL_STARTED, "preempted 1"],
    ),
    "SIGTERM is answered once": (
        [PORTS, Preempted(), *(HostAnswered(n, agreed=True) for n in (0, 1, 2, 2))],
        [*ALL_STARTED, "preempted 1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_what_a_driver_does_with_its_hosts(case: str) -> None:
    events, expected = TABLE[case]
    assert done(events) == expected


def test_a_stopped_agent_has_the_time_of_a_silent_host() -> None:
    """``tests/hosts/test_two_namespaces.py`` holds the errors of silent hosts to 15 s."""
    assert SILENCE == 13 * SECOND


def test_the_deadline_is_there_once_hosts_are_asked_to_end() -> None:
    rules = JobRules(1)
    assert rules.deadline is None
    rules.feed(STOP)
    assert rules.deadline == LATE
