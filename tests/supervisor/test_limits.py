"""Time limits of a launch, as tables: made-up clocks in, actions and verdict out."""

from __future__ import annotations

import pytest

from xmp._rules.limits import HANG, SAY_AFTER, START, TO_ACT, TOTAL, Clocks, Overdue
from xmp._rules.watch import CAUSE, FINISHED, STOPPED, Watch
from xmp._rules.watch_events import (
    Ended,
    Entered,
    Interrupt,
    Pause,
    Progress,
    Raised,
    Resume,
    Returned,
    Tick,
    WatchEvent,
)
from xmp._words.types import Limits

S = 1_000_000_000
CALLED = 100 * S


def watched(
    *events: WatchEvent, ranks: int = 2, begun: int = CALLED + S, **seconds: float
) -> tuple[Watch, list[str]]:
    """A launch called at 100 s whose replicas were made at 101 s, and the actions it asked for."""
    limits = Limits(**{name: int(value * S) for name, value in seconds.items()})
    watch = Watch(range(ranks), S, limits, CALLED, begun)
    return watch, [action.name for event in events for action in watch.feed(event)]


def at(seconds: float) -> int:
    return CALLED + int(seconds * S)


def inside(ranks: int = 2, when: float = 2) -> list[WatchEvent]:
    return [Entered(rank, at(when)) for rank in range(ranks)]


def test_without_limits_nothing_is_ever_due() -> None:
    watch, actions = watched(*inside(), Tick(at(1e6)))
    assert actions == []
    assert watch.deadline is None


def test_the_whole_call_is_limited_from_the_call_on() -> None:
    watch, actions = watched(*inside(), Tick(at(9.999)), total=10)
    assert actions == []
    assert watch.deadline == at(10)
    assert [a.name for a in watch.feed(Tick(at(10)))] == ["stacks", "SIGTERM"]
    assert watch.deadline == at(11), "the grace"
    assert [a.name for a in watch.feed(Tick(at(11)))] == ["SIGKILL"]
    assert watch.verdict().overdue == Overdue(TOTAL, 10 * S, (0, 1))


def test_of_several_attempts_the_first_call_counts_for_the_whole() -> None:
    watch, actions = watched(Tick(at(4.9)), total=10, start=6, first=95)
    assert actions == []
    assert watch.deadline == at(5)
    watch.feed(Tick(at(5)))
    assert watch.verdict().overdue == Overdue(TOTAL, 10 * S, (0, 1))
    watch, _ = watched(Tick(at(3)), total=10, start=4, first=95)
    assert watch.deadline == at(4), "each attempt has its own time to start"


def test_a_launch_over_its_time_has_no_culprit() -> None:
    watch, _ = watched(*inside(), Tick(at(10)), total=10)
    watch.feed(Ended(0, at(10.1), signal=15))
    watch.feed(Raised(1, at(10.2), "SystemExit: from a handler of SIGTERM"))
    assert [a.name for a in watch.feed(Ended(1, at(10.3), exit_code=1))] == ["finish"]
    verdict = watch.verdict()
    assert verdict.cause is None
    assert verdict.labels == {0: STOPPED, 1: STOPPED}


def test_a_replica_done_in_time_has_no_limit() -> None:
    watch, _ = watched(*inside(), Returned(0, at(3)), Returned(1, at(3)), total=10, start=5, hang=5)
    watch.feed(Ended(0, at(3)))
    assert [a.name for a in watch.feed(Ended(1, at(4)))] == ["finish"]
    assert watch.deadline is None
    assert watch.verdict().overdue is None


def test_a_failure_counts_more_than_the_time() -> None:
    watch, actions = watched(*inside(), Raised(1, at(9.99), "ValueError"), Tick(at(10)), total=10)
    assert actions == []
    assert watch.deadline == at(10.04)
    watch.feed(Tick(at(10.04)))
    assert watch.verdict().overdue is None
    assert watch.verdict().labels[1] == CAUSE


def test_an_interrupt_counts_more_than_the_time() -> None:
    watch, actions = watched(*inside(), Interrupt(at(9.9)), Tick(at(10)), total=10)
    assert actions == ["stacks", "SIGINT"]
    assert watch.verdict().overdue is None


# --- until all are in the function -------------------------------------------------------------


def test_the_start_is_limited_until_the_last_one_is_inside() -> None:
    watch, actions = watched(Entered(0, at(2)), Tick(at(4.9)), start=5)
    assert actions == []
    assert [a.name for a in watch.feed(Tick(at(5)))] == ["stacks", "SIGTERM"]
    assert watch.verdict().overdue == Overdue(START, 5 * S, (1,))


def test_the_start_is_over_when_all_are_inside() -> None:
    watch, actions = watched(*inside(), Tick(at(60)), start=5)
    assert actions == []
    assert watch.deadline is None


def test_a_replica_that_ends_before_the_function_is_not_waited_for() -> None:
    _, actions = watched(Entered(0, at(2)), Ended(1, at(3)), Tick(at(60)), start=5)
    assert actions == []


def test_a_long_start_is_reported_once() -> None:
    watch, actions = watched(Entered(0, at(2)), Tick(CALLED + SAY_AFTER - 1))
    assert actions == []
    assert watch.deadline == CALLED + SAY_AFTER
    (said,) = watch.feed(Tick(CALLED + SAY_AFTER))
    assert (said.name, said.ranks, SAY_AFTER) == ("phases", (1,), 30 * S)
    assert watch.deadline is None
    assert watch.feed(Tick(at(3600))) == []


def test_a_long_start_is_not_reported_when_all_are_inside() -> None:
    watch, actions = watched(*inside(), Tick(CALLED + 2 * SAY_AFTER))
    assert actions == []
    assert watch.deadline is None


def test_replicas_that_were_made_late_get_their_time_to_start() -> None:
    """The launcher has reported what came before."""
    begun = CALLED + 2 * SAY_AFTER
    watch, actions = watched(Tick(begun), begun=begun)
    assert actions == []
    assert watch.deadline == begun + SAY_AFTER


# --- hanging -----------------------------------------------------------------------------------


def seen(*times: float) -> list[WatchEvent]:
    return [Progress(rank, at(time)) for rank, time in enumerate(times)]


def test_no_progress_of_anybody_is_a_hang() -> None:
    watch, actions = watched(*inside(), *seen(3, 4), Tick(at(8.9)), hang=5)
    assert actions == []
    assert watch.deadline == at(9)
    assert [a.name for a in watch.feed(Tick(at(9)))] == ["stacks", "SIGTERM"]
    assert watch.verdict().overdue == Overdue(HANG, 5 * S, (0, 1))


def test_one_that_gets_on_is_enough() -> None:
    watch, actions = watched(*inside(), *seen(3, 4), *seen(3, 8), Tick(at(9)), hang=5)
    assert actions == []
    assert watch.deadline == at(13)


def test_a_replica_that_has_not_begun_cannot_hang() -> None:
    watch, actions = watched(Progress(0, at(2)), Tick(at(7)), Tick(at(12)), hang=5)
    assert actions == []
    assert watch.deadline == at(17)
    assert watched(Progress(0, at(2)), Ended(1, at(2)), Tick(at(7)), hang=5)[1][0] == "stacks"


def test_a_finished_replica_is_not_waited_for() -> None:
    for limit in ({"total": 8.0}, {"hang": 5.0}):
        watch, _ = watched(*inside(), *seen(3, 3), Returned(0, at(3)), Tick(at(8)), **limit)
        overdue = watch.verdict().overdue
        assert overdue is not None
        assert overdue.ranks == (1,), "though the process of rank 0 has not ended"


def test_all_finished_and_processes_do_not_end() -> None:
    returned = [Returned(0, at(3)), Returned(1, at(3))]
    watch, actions = watched(*inside(), *seen(3, 3), *returned, Tick(at(8)), hang=5)
    assert actions == ["stacks", "SIGTERM"]
    overdue = watch.verdict().overdue
    assert overdue is not None
    assert overdue.ranks == (0, 1)
    assert overdue.at_the_end
    assert not overdue.diverged


def test_what_one_does_at_its_end_is_no_progress_for_the_others() -> None:
    events = [*inside(), *seen(3, 3), Returned(0, at(3)), Progress(0, at(7)), Tick(at(8))]
    assert watched(*events, hang=5)[1] == ["stacks", "SIGTERM"]
    alone = [*events[:-1], Ended(1, at(7)), Progress(0, at(10)), Tick(at(12.5))]
    assert watched(*alone, hang=5)[1] == [], "but it is when no other replica is there"


@pytest.mark.parametrize("end", [Returned(0, at(3)), Ended(0, at(3))])
def test_some_finished_and_the_others_wait(end: WatchEvent) -> None:
    watch, actions = watched(*inside(), *seen(3, 3), end, Tick(at(8)), hang=5)
    assert actions == ["stacks", "SIGTERM"]
    overdue = watch.verdict().overdue
    assert overdue is not None
    assert overdue.diverged
    assert overdue.finished == (0,)
    watch.feed(Ended(0, at(8)))
    watch.feed(Ended(1, at(8.1), signal=15))
    assert watch.verdict().labels == {0: FINISHED, 1: STOPPED}


def test_the_earliest_limit_is_named() -> None:
    watch, _ = watched(*inside(), *seen(3, 3), Tick(at(60)), total=10, hang=5)
    overdue = watch.verdict().overdue
    assert overdue is not None
    assert overdue.name == HANG


# --- Ctrl-Z ------------------------------------------------------------------------------------


def test_while_the_user_has_stopped_it_no_time_passes() -> None:
    stopped = [*inside(), *seen(3, 3), Pause(at(4)), Tick(at(100))]
    watch, actions = watched(*stopped, total=10, hang=5)
    assert actions == []
    assert watch.deadline is None
    watch.feed(Resume(at(104)))
    assert watch.deadline == at(109), "the hang counts from the end of the pause"
    watch.feed(Progress(0, at(108)))
    assert watch.deadline == at(110), "6 of 10 seconds were left"


def test_nor_does_the_time_to_start() -> None:
    paused = [Entered(0, at(2)), Pause(at(4)), Tick(at(100)), Resume(at(104))]
    watch, actions = watched(*paused, start=5)
    assert actions == []
    assert watch.deadline == at(105)
    assert [action.name for action in watch.feed(Tick(at(105)))] == ["stacks", "SIGTERM"]


def test_two_reasons_hold_the_clocks_until_both_are_gone() -> None:
    watch, _ = watched(*inside(), Pause(at(4), "debugger"), Pause(at(5)), total=10)
    watch.feed(Resume(at(6)))
    assert watch.deadline is None
    watch.feed(Resume(at(8), "debugger"))
    assert watch.deadline == at(14)
    watch.feed(Resume(at(9), "debugger"))
    assert watch.deadline == at(14), "what did not hold them frees nothing"


def test_a_failure_waits_until_the_clocks_go_on() -> None:
    """Who debugs is not taken away by another's failure; what the user asks for comes at once."""
    watch, actions = watched(*inside(), Pause(at(4)), Raised(0, at(5)), Tick(at(60)), total=10)
    assert actions == []
    assert watch.deadline is None
    assert [action.name for action in watch.feed(Resume(at(90)))] == ["stacks", "SIGTERM"]
    watch, _ = watched(*inside(), Pause(at(4)), Raised(0, at(5)))
    assert [action.name for action in watch.feed(Interrupt(at(6)))] == ["stacks", "SIGINT"]


LEFT: dict[str, tuple[float, bool, float | None]] = {
    "the limit is ahead": (4, False, 6 + TO_ACT / S),
    "it is ahead, and the supervisor is stopped: it may go on": (4, True, 6 + TO_ACT / S),
    "the supervisor may just act": (10.1, True, TO_ACT / S - 0.1),
    "the supervisor acts": (10.25, False, 7.75),
    "the supervisor is stopped, and does not": (10.25, True, 0),
    "it has had all its time": (19, False, -1),
}
"""Seconds after the call, whether the supervisor is stopped; seconds that it still has."""


@pytest.mark.parametrize("case", LEFT)
def test_how_long_a_supervisor_has_to_end_a_launch(case: str) -> None:
    now, stopped, left = LEFT[case]
    clocks = Clocks({0}, Limits(total=10 * S), CALLED, CALLED)
    found = clocks.left_to_end(at(now), 8 * S, lambda: stopped)
    assert found is not None
    assert found / S == pytest.approx(left)


def test_a_pause_gives_a_supervisor_more_time() -> None:
    clocks = Clocks({0}, Limits(total=10 * S), CALLED, CALLED)
    clocks.pause(at(3))
    assert clocks.left_to_end(at(12), 8 * S, lambda: True) == 7 * S + TO_ACT
    clocks.resume(at(12))
    assert clocks.left_to_end(at(18), 8 * S, lambda: True) == S + TO_ACT


def test_without_a_timeout_a_supervisor_has_no_end() -> None:
    assert Clocks({0}, Limits()).left_to_end(at(1e6), 0, lambda: True) is None
