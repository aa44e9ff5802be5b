"""The rules for one host of a launch over several, as tables of events and actions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xmp._rules.host_rules import (
    Asked,
    Failed,
    Heard,
    HostEvent,
    HostRules,
    Left,
    NoneLeft,
    StepAnswered,
    VoteAnswered,
)
from xmp._words.host_words import HostFailure

FAILURE = HostFailure(rank=1, kind="ReplicaRaised", text="rank 1 raised")
FAILED = Failed(FAILURE, mends=True)
VERDICT = Heard(HostFailure(host=1, kind="ReplicaRaised", text="rank 3 raised"))
CTRL_C, SIGTERM = Asked(preempted=False, why="Ctrl-C"), Asked(preempted=True)
RETURNED = NoneLeft(returned=True)


def said(events: list[HostEvent], keeps: bool = False, for_driver: bool = False) -> list[str]:
    """Feed the events; return "who: what" for each action after them, the failures by kind."""
    rules, lines = HostRules(keeps, for_driver), []
    for event in events:
        for action in rules.feed(event):
            words = [a.kind if isinstance(a, HostFailure) else str(a) for a in action.args]
            lines.append(" ".join([f"{action.to}: {action.name}", *words]))
    return lines


TABLE: dict[str, tuple[list[HostEvent], list[str]]] = {
    "all ends well": (
        [RETURNED, Heard(all_done=True), Left()],
        ["hosts: done", "launch: finish", "hosts: leave"],
    ),
    "not all are done yet": ([RETURNED, Heard()], ["hosts: done"]),
    "a failure here is reported once": (
        [FAILED, FAILED, NoneLeft(FAILED), NoneLeft(), Left(FAILED)],
        ["hosts: fail ReplicaRaised", "hosts: leave"],
    ),
    "a failure that is known at the end only": (
        [NoneLeft(FAILED)],
        ["hosts: fail ReplicaRaised"],
    ),
    "a failure elsewhere ends the replicas": (
        [VERDICT, VERDICT, NoneLeft(FAILED), Left(FAILED)],
        ["launch: ends_with ReplicaRaised", "replicas: stop", "launch: finish", "hosts: leave"],
    ),
    "a failure elsewhere while this host waits": (
        [RETURNED, VERDICT],
        ["hosts: done", "launch: ends_with ReplicaRaised", "launch: finish"],
    ),
    "a failure elsewhere before there is a supervisor": (
        [replace(VERDICT, has_order=False), VERDICT],
        ["launch: ends_with ReplicaRaised"],
    ),
    "progress and preemption are passed on": (
        [Heard(progress=True), Heard(preempted=True)],
        ["replicas: progress", "replicas: preempt"],
    ),
    "rounds of the vote": (
        [Heard(preempted=True), StepAnswered(0, 4), Heard(proposals=[(1, 6, False)]),
         StepAnswered(1, 7), Heard(proposals=[(2, 7, True)]), RETURNED],
        ["replicas: preempt", "hosts: reached 0 4", "replicas: propose 1 6 False",
         "hosts: reached 1 7", "launch: note_preemption", "replicas: propose 2 7 True",
         "hosts: done"],
    ),
    "replicas end with a round unanswered": (
        [Heard(proposals=[(3, 9, False)]), RETURNED],
        ["replicas: propose 3 9 False", "hosts: done", "hosts: reached 3 0"],
    ),
    "a round that comes when no replica is left": (
        [RETURNED, Heard(preempted=True), Heard(proposals=[(1, 5, False), (2, 6, False)])],
        ["hosts: done", "hosts: reached 0 0", "hosts: reached 2 0"],
    ),
    "the last round that comes when no replica is left": (
        [RETURNED, Heard(proposals=[(1, 5, True)])],
        ["hosts: done", "launch: note_preemption"],
    ),
    "Ctrl-C, then the end": ([CTRL_C, NoneLeft(FAILED)], ["hosts: fail Ended"]),
    "Ctrl-C, and the replicas return": ([CTRL_C, RETURNED], ["hosts: fail Ended"]),
    "Ctrl-C while this host waits": (
        [RETURNED, CTRL_C],
        ["hosts: done", "hosts: fail Ended", "launch: finish"],
    ),
    "an interrupt before there are replicas": (
        [Left(replace(FAILED, interrupted=True))],
        ["hosts: fail Ended", "hosts: leave"],
    ),
    "SIGTERM, the replicas agree and return": (
        [SIGTERM, VoteAnswered(True), RETURNED, Heard(all_done=True)],
        ["hosts: preempt", "launch: stays", "hosts: preempt", "hosts: done", "launch: finish"],
    ),
    "SIGTERM on both hosts at once": (
        [SIGTERM, Heard(preempted=True), VoteAnswered(True), StepAnswered(0, 4),
         Heard(proposals=[(1, 5, True)]), RETURNED, Heard(all_done=True)],
        ["replicas: preempt", "hosts: preempt", "hosts: reached 0 4", "launch: note_preemption",
         "replicas: propose 1 5 True", "launch: stays", "hosts: preempt", "hosts: done",
         "launch: finish"],
    ),
    "SIGTERM, the replicas agree and one fails": (
        [SIGTERM, VoteAnswered(True), NoneLeft(FAILED)],
        ["hosts: preempt", "hosts: fail ReplicaRaised"],
    ),
    "SIGTERM, the replicas do not ask": (
        [SIGTERM, VoteAnswered(False), NoneLeft(FAILED)],
        ["hosts: fail Ended"],
    ),
    "SIGTERM while the last replica returns": (
        [SIGTERM, RETURNED],
        ["launch: stays", "hosts: preempt", "hosts: done"],
    ),
    "SIGTERM while this host waits": (
        [RETURNED, SIGTERM, Heard(all_done=True)],
        ["hosts: done", "launch: stays", "hosts: preempt", "launch: finish"],
    ),
    "SIGTERM while this host waits, then Ctrl-C": (
        [RETURNED, SIGTERM, CTRL_C],
        ["hosts: done", "launch: stays", "hosts: preempt", "hosts: fail Ended", "launch: finish"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_what_follows_from_what_a_host_hears_and_sees(case: str) -> None:
    events, expected = TABLE[case]
    assert said(events) == expected


@pytest.mark.parametrize(
    ("proposals", "answered", "reports"),
    [
        ([], [], ["done", "reached 0 0"]),
        ([], [0], ["reached 0 7", "done"]),
        ([(1, 9, False)], [0], ["reached 0 7", "done", "reached 1 0"]),
        ([(1, 9, False)], [0, 1], ["reached 0 7", "reached 1 7", "done"]),
        ([(1, 9, False), (2, 9, True)], [0, 1], ["reached 0 7", "reached 1 7", "done"]),
    ],
)
def test_a_host_that_ends_answers_what_its_supervisor_has_not(
    proposals: list[tuple[int, int, bool]], answered: list[int], reports: list[str]
) -> None:
    """Orders to a supervisor whose last replica has just ended are lost."""
    events: list[HostEvent] = [
        Heard(preempted=True, proposals=proposals),
        *(StepAnswered(number, 7) for number in answered),
        RETURNED,
        Heard(proposals=[(3, 20, False)]),
    ]
    reported = [line.removeprefix("hosts: ") for line in said(events) if line.startswith("hosts")]
    assert reported == [*reports, "reached 3 0"]


def test_the_link_is_kept_for_another_attempt() -> None:
    assert said([FAILED, Left(FAILED)], keeps=True) == ["hosts: fail ReplicaRaised"]


def test_a_driver_gets_the_stacks_of_all_hosts() -> None:
    orders = ["launch: ends_with ReplicaRaised", "replicas: stacks", "replicas: stop"]
    assert said([VERDICT], for_driver=True) == orders


@pytest.mark.parametrize(
    ("before", "failed", "final"),
    [
        ([], FAILED, False),
        ([], replace(FAILED, mends=False), True),
        ([Heard(preempted=True)], FAILED, True),
        ([SIGTERM, VoteAnswered(True)], FAILED, True),
        ([CTRL_C], FAILED, True),
    ],
)
def test_whether_another_attempt_may_follow(
    before: list[HostEvent], failed: Failed, final: bool
) -> None:
    rules = HostRules(keeps=True, for_driver=False)
    for event in before:
        rules.feed(event)
    (report,) = rules.feed(failed)
    assert report.args[0].final is final


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ([CTRL_C], "the launch was ended: Ctrl-C"),
        ([SIGTERM], "the launch was ended: its launcher got a signal"),
        ([SIGTERM, CTRL_C], "the launch was ended: Ctrl-C"),
        ([CTRL_C, SIGTERM], "the launch was ended: Ctrl-C"),
    ],
)
def test_other_hosts_are_told_who_has_ended_it(asked: list[HostEvent], text: str) -> None:
    rules = HostRules(keeps=False, for_driver=False)
    for event in asked:
        rules.feed(event)
    (report,) = rules.feed(NoneLeft(FAILED))
    assert report.args[0].text == text
