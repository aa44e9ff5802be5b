"""The failure rules of a gang, as tables: a call's end, a call that fails, a gang that is lost."""

from __future__ import annotations

import pytest

from xmp._rules.watch import CAUSE, STOPPED, Watch
from xmp._rules.watch_events import (
    AtPost,
    CallOff,
    Ended,
    Interrupt,
    Kill,
    Leave,
    Raised,
    Returned,
    Stop,
    Stuck,
    Tick,
    WatchEvent,
)
from xmp._words.types import Limits

MS = 1_000_000


def done(rank: int, at: int = 1) -> tuple[WatchEvent, ...]:
    return Returned(rank, at), AtPost(rank, at)


def failed(rank: int, at: int = 1) -> tuple[WatchEvent, ...]:
    return Raised(rank, at, "ValueError: no"), AtPost(rank, at)


def recalled(rank: int, at: int) -> tuple[WatchEvent, ...]:
    return Raised(rank, at, "KeyboardInterrupt: ", interrupted=True), AtPost(rank, at)


def call(
    *events: WatchEvent, keeps: bool = True, total: int | None = None
) -> tuple[Watch, list[str]]:
    """A call of three ranks: its rules, and what they ordered, with the ranks."""
    watch = Watch(range(3), 1000 * MS, Limits(total=total), stays=True, keeps=keeps)
    return watch, ordered(watch, *events)


def ordered(watch: Watch, *events: WatchEvent) -> list[str]:
    actions = [action for event in events for action in watch.feed(event)]
    return [" ".join([each.name, *map(str, each.ranks)]) for each in actions]


@pytest.mark.parametrize(
    ("events", "actions"),
    [
        pytest.param((*done(0), *done(1), *done(2)), ["over"], id="all return"),
        pytest.param((*failed(0), *failed(1, 2), *failed(2, 3)), ["over"], id="all raise the same"),
        pytest.param(
            (*failed(1), *done(0), Tick(60 * MS), *recalled(2, 70 * MS)),
            ["stacks 2", "SIGINT 2", "over"],
            id="one inside comes back",
        ),
        pytest.param(
            (CallOff(1), *recalled(0, 2), *recalled(1, 2), *done(2, 3)),
            ["stacks 0 1 2", "SIGINT 0 1 2", "over"],
            id="Ctrl-C",
        ),
        pytest.param(
            (*failed(1), Tick(60 * MS), Tick(1060 * MS), Tick(2060 * MS)),
            ["stacks 0 2", "SIGINT 0 2", "SIGTERM 0 1 2", "SIGKILL 0 1 2"],
            id="one does not come back within grace",
        ),
        pytest.param(
            (*failed(1), Tick(60 * MS), Stuck(70 * MS)),
            ["stacks 0 2", "SIGINT 0 2", "SIGTERM 0 1 2"],
            id="one cannot come back",
        ),
        pytest.param(
            (*done(0), Ended(1, 2, signal=9), *done(2, 3), Tick(60 * MS)),
            ["stacks 0 2", "SIGTERM 0 2"],
            id="a process ends: the others at their posts are ended",
        ),
        pytest.param(
            (Ended(1, 2), Tick(60 * MS)), ["stacks 0 2", "SIGTERM 0 2"], id="even with exit code 0"
        ),
        pytest.param(
            (CallOff(1), *recalled(0, 2), Ended(1, 3, signal=2)),
            ["stacks 0 1 2", "SIGINT 0 1 2", "SIGTERM 0 2"],
            id="one dies of SIGINT",
        ),
        pytest.param((*done(0), Kill(2)), ["SIGKILL 0 1 2"], id="killed"),
        pytest.param(
            (*done(0), Interrupt(2)), ["stacks 0 1 2", "SIGTERM 0 1 2"], id="interrupted for good"
        ),
    ],
)
def test_a_call(events: tuple[WatchEvent, ...], actions: list[str]) -> None:
    assert call(*events)[1] == actions


def test_a_limit_of_the_call_recalls_those_inside() -> None:
    watch, actions = call(*done(0), Tick(500 * MS), *recalled(1, 501 * MS), *recalled(2, 502 * MS),
                          total=500 * MS)  # fmt: skip
    assert actions == ["stacks 1 2", "SIGINT 1 2", "over"]
    overdue = watch.verdict().overdue
    assert overdue is not None
    assert overdue.ranks == (1, 2)


def test_who_is_recalled_is_not_to_blame() -> None:
    watch, _ = call(*failed(1), Tick(60 * MS), *recalled(0, 70 * MS), *recalled(2, 71 * MS))
    verdict = watch.verdict()
    assert (verdict.cause, verdict.labels) == (1, {0: STOPPED, 1: CAUSE, 2: STOPPED})


def test_a_setup_that_fails_ends_the_gang() -> None:
    setup = (*done(0), Raised(1, 1, "ValueError: no"), *done(2), Tick(60 * MS))
    assert call(*setup, keeps=False)[1] == ["stacks 1", "SIGTERM 0 1 2"]


@pytest.mark.parametrize(
    ("event", "actions"),
    [
        pytest.param(Ended(1, 2, signal=9), [], id="a process ends"),
        pytest.param(Stop(2), ["SIGTERM 0 1 2"], id="the launcher ends the gang"),
        pytest.param(Kill(2), ["SIGKILL 0 1 2"], id="at once"),
        pytest.param(CallOff(2), [], id="Ctrl-C comes too late"),
        pytest.param(Tick(60_000 * MS), [], id="time passes"),
    ],
)
def test_between_calls(event: WatchEvent, actions: list[str]) -> None:
    watch = Watch.at_rest(range(3), 1000 * MS)
    assert watch.deadline is None
    assert ordered(watch, event) == actions
    ended = isinstance(event, (Ended, Stop, Kill))
    assert (watch.phase == "over") is not ended
    if isinstance(event, Ended):
        assert ordered(watch, Tick(60 * MS)) == ["stacks 0 2", "SIGTERM 0 2"]


def test_without_further_calls_the_ranks_end_by_themselves() -> None:
    watch = Watch.at_rest(range(2), 1000 * MS)
    assert ordered(watch, Leave(1), Ended(0, 2), Tick(90_000 * MS), Ended(1, 90_000 * MS)) == [
        "finish"
    ]
    assert watch.verdict().order == ()
