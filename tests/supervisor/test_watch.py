"""The failure rules, as tables: events in, actions and verdict out. No process, no clock."""

from __future__ import annotations

import pytest

from xmp._rules.watch import CAUSE, COLLATERAL, FINISHED, STOPPED, UNKNOWN, Watch, is_victim
from xmp._rules.watch_events import Ended, Interrupt, Kill, Raised, Returned, Stop, Tick, WatchEvent

MS = 1_000_000
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"


def fed(*events: WatchEvent, ranks: int = 4, grace_ms: int = 1000) -> tuple[Watch, list[str]]:
    watch = Watch(range(ranks), grace_ms * MS)
    names = [action.name for event in events for action in watch.feed(event)]
    return watch, names


def test_everybody_returns() -> None:
    watch, actions = fed(Returned(0, 1), Ended(0, 2), Returned(1, 3), Ended(1, 4), ranks=2)
    assert actions == ["finish"]
    assert watch.verdict().cause is None
    assert watch.verdict().labels == {0: FINISHED, 1: FINISHED}


def test_a_result_counts_only_when_the_process_has_ended() -> None:
    watch, actions = fed(Returned(0, 1), Ended(0, 2, exit_code=1), ranks=1)
    assert watch.verdict().cause == 0
    assert actions == ["finish"]


def test_exit_0_without_a_word_is_success() -> None:
    watch, _ = fed(Ended(0, 1), ranks=1)
    assert watch.verdict().cause is None


def test_the_first_failure_stops_the_gang_after_the_settle_window() -> None:
    watch, actions = fed(Raised(2, 0, "ValueError: no"), Tick(49 * MS))
    assert actions == []
    assert watch.deadline == 50 * MS
    assert [a.name for a in watch.feed(Tick(50 * MS))] == ["stacks", "SIGTERM"]
    assert watch.deadline == 1050 * MS
    assert [a.name for a in watch.feed(Tick(1050 * MS))] == ["SIGKILL"]
    assert [a.name for a in watch.feed(Tick(6050 * MS))] == ["finish"]
    assert watch.live == {0, 1, 2, 3}


def test_further_failures_prolong_the_window_but_not_for_ever() -> None:
    watch = Watch(range(8), 0)
    for rank in range(7):
        watch.feed(Raised(rank, rank * 40 * MS, CLOSED))
    assert watch.deadline == 250 * MS


def test_all_ended_needs_no_window() -> None:
    _, actions = fed(Raised(0, 0, "x"), Ended(0, 1, 1), ranks=1)
    assert actions == ["finish"]


@pytest.mark.parametrize(
    ("events", "cause", "labels"),
    [
        pytest.param(
            (Raised(1, 5, CLOSED), Raised(3, 9, "ValueError: bad batch")),
            3,
            {1: COLLATERAL, 3: CAUSE},
            id="a victim reported first",
        ),
        pytest.param(
            (Raised(0, 5, CLOSED), Raised(1, 6, CLOSED), Ended(3, 40 * MS, signal=9)),
            3,
            {0: COLLATERAL, 1: COLLATERAL, 3: CAUSE},
            id="a death without a record is dated back to its victims",
        ),
        pytest.param(
            (Raised(0, 5, CLOSED), Tick(60 * MS), Ended(3, 90 * MS, signal=9)),
            3,
            {0: COLLATERAL, 3: CAUSE},
            id="also after xmp has sent another signal, which did not end it",
        ),
        pytest.param(
            (Raised(0, 5, CLOSED), Tick(60 * MS), Tick(1061 * MS), Ended(3, 1062 * MS, signal=9)),
            0,
            {0: CAUSE, 3: STOPPED},
            id="but not after xmp has sent the same",
        ),
        pytest.param(
            (Raised(1, 5, "ValueError: first"), Ended(3, 9, signal=11)),
            1,
            {1: CAUSE, 3: UNKNOWN},
            id="but not before a rank that failed by itself",
        ),
        pytest.param(
            (Raised(1, 7, CLOSED), Raised(0, 5, CLOSED)),
            0,
            {0: CAUSE, 1: COLLATERAL},
            id="only victims: the earliest",
        ),
        pytest.param(
            (
                Raised(2, 5, "KeyError: 1"),
                Ended(0, 30 * MS, signal=6, words="the coordination service has an error"),
            ),
            2,
            {2: CAUSE, 0: COLLATERAL},
            id="an abort with a victim's last words",
        ),
    ],
)
def test_the_culprit(events: tuple[WatchEvent, ...], cause: int, labels: dict[int, str]) -> None:
    watch, _ = fed(*events)
    verdict = watch.verdict()
    assert verdict.cause == cause
    assert verdict.order[0] == cause
    assert {rank: verdict.labels[rank] for rank in labels} == labels


def test_those_that_we_end_are_not_to_blame() -> None:
    watch, _ = fed(Raised(1, 0, "ValueError"), Tick(50 * MS), ranks=3)
    watch.feed(Ended(1, 51 * MS, exit_code=1))
    watch.feed(Ended(0, 52 * MS, signal=15))
    assert [a.name for a in watch.feed(Ended(2, 53 * MS, signal=15))] == ["finish"]
    assert watch.verdict().labels == {1: CAUSE, 0: STOPPED, 2: STOPPED}


def test_interrupt_then_one_grace_then_kill() -> None:
    watch, actions = fed(Interrupt(0))
    assert actions == ["stacks", "SIGINT"]
    assert [a.name for a in watch.feed(Tick(1000 * MS))] == ["SIGKILL"]


def test_a_second_interrupt_kills_at_once() -> None:
    _, actions = fed(Interrupt(0), Interrupt(1))
    assert actions == ["stacks", "SIGINT", "SIGKILL"]


def test_stop_and_kill() -> None:
    assert fed(Stop(0), Stop(1), Kill(2))[1] == ["SIGTERM", "SIGKILL"]


def test_an_interrupted_replica_is_a_failure() -> None:
    watch, _ = fed(Raised(0, 1, "KeyboardInterrupt: "), ranks=1)
    assert watch.verdict().cause == 0


@pytest.mark.parametrize(
    ("words", "victim"),
    [
        (CLOSED, True),
        ("RuntimeError: [gloo] Read error [::1]: Connection reset by peer", True),
        ("ConnectionError: Broken pipe", True),
        ("XlaRuntimeError: UNAVAILABLE: … The coordination service", True),
        ("ValueError: could not reset the parameters", False),
        ("AssertionError: loss is nan", False),
    ],
)
def test_the_words_of_victims(words: str, victim: bool) -> None:
    assert is_victim(words) is victim


def test_with_patience_the_others_may_end_by_themselves() -> None:
    watch, actions = fed(Raised(1, 0, "ValueError"), ranks=3)
    watch.patience = 2000 * MS
    assert [a.name for a in watch.feed(Tick(50 * MS))] == ["stacks"]
    watch.feed(Ended(1, 51 * MS, exit_code=1))
    watch.feed(Ended(0, 60 * MS))
    assert watch.feed(Tick(2049 * MS)) == []
    assert [a.name for a in watch.feed(Tick(2050 * MS))] == ["SIGTERM"]
    assert [a.name for a in watch.feed(Ended(2, 2060 * MS, signal=15))] == ["finish"]
    assert watch.verdict().labels == {0: FINISHED, 1: CAUSE, 2: STOPPED}
