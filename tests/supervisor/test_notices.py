"""When a wait is worth a word, as traces: looks at made-up moments in, notices out."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from xmp._rules.notices import Idle, Look, Notice, Waits, limit_of
from xmp._words.record import Record

S = 1_000_000_000
LIMIT = 30 * S
EVERY = 5
"""Seconds between two looks."""


def inside(rank: int, at: float, since: float = 0, number: int = 7, **fields: object) -> Look:
    record = Record(number, "barrier", since=int(since * S), inside=True, **fields)  # type: ignore[arg-type]
    return Look(rank, record, int(at * S))


def outside(
    rank: int, at: float, used: float = 0, moved: int = 0, beat: float = 0, since: float = 0
) -> Look:
    record = Record(6, "barrier", since=int(since * S), beat=int(beat * S))
    return Look(rank, record, int(at * S), int(used * S), moved)


def said(waits: Waits, moments: Iterator[tuple[float, list[Look]]]) -> list[tuple[float, Notice]]:
    return [(at, notice) for at, looks in moments for notice in waits.look(looks)]


def one_is_late(until: int, **per_second: float) -> Iterator[tuple[float, list[Look]]]:
    """Ranks 0 and 1 wait from the first second on; what rank 2 does grows with the time."""
    for at in range(EVERY, until + 1, EVERY):
        does = {name: each * at for name, each in per_second.items()}
        yield at, [inside(0, at, 1), inside(1, at, 2), outside(2, at, **does)]  # type: ignore[arg-type]


LATE = {
    "it does nothing": ({}, [(35, False), (95, False)]),
    "it polls every 10 ms": ({"used": 0.01}, [(35, False), (95, False)]),
    "it uses a fifth of a core": ({"used": 0.2}, [(305, True)]),
    "it reads": ({"moved": 1}, [(305, True)]),
    "it calls heartbeat": ({"beat": 1}, [(305, True)]),
}


@pytest.mark.parametrize("name", LATE)
def test_one_rank_has_not_come(name: str) -> None:
    does, expected = LATE[name]
    found = said(Waits(LIMIT), one_is_late(400, **does))
    assert [(at, notice.works) for at, notice in found] == expected
    assert {notice.absent for _, notice in found} == {(2,)}
    assert [notice.seconds for _, notice in found] == [at - 1 for at, _ in expected]


def test_ranks_of_other_hosts_may_be_missing() -> None:
    """They are asked three times; the last time it is no excuse that they work."""
    waits = Waits(LIMIT, others=True)
    moments = ((at, [inside(0, at), inside(1, at)]) for at in range(EVERY, 500, EVERY))
    found = said(waits, moments)
    assert [(at, notice.absent, notice.works) for at, notice in found] == [
        (30, (), False),
        (90, (), False),
        (300, (), True),
    ]
    assert waits.last_work() is None, "what they do is known there"


def test_a_group_of_this_host_is_complete_without_others() -> None:
    waits = Waits(LIMIT, others=True)
    group = {"group": 5, "members": (0, 1)}
    moments = (
        (at, [inside(0, at, **group), inside(1, at, **group), outside(2, at)])
        for at in range(EVERY, 500, EVERY)
    )
    assert said(waits, moments) == []


def test_a_rank_that_stops_working_has_the_limit_from_then_on() -> None:
    waits = Waits(LIMIT)
    moments = (
        (at, [inside(0, at), outside(1, at, used=min(at, 100))]) for at in range(5, 200, EVERY)
    )
    assert [at for at, _ in said(waits, moments)] == [130, 190]


def test_three_times_the_longest_wait_is_usual() -> None:
    waits = Waits(LIMIT)
    for at in (5, 20):
        waits.look([inside(0, at), outside(1, at)])
    waits.look([outside(0, 40), outside(1, 40)])
    assert waits.longest == 40 * S
    later = ((at, [inside(0, at, 100, 8), outside(1, at)]) for at in range(105, 400, EVERY))
    assert [at for at, _ in said(waits, later)] == [220]


def test_a_wait_that_has_not_ended_is_not_the_longest() -> None:
    waits = Waits(LIMIT)
    assert [at for at, _ in said(waits, one_is_late(30))] == []
    assert waits.longest == 0


def test_another_group_is_another_wait() -> None:
    waits = Waits(LIMIT)
    looks = [
        inside(0, 40, 1, group=3, members=(0, 1)), outside(1, 40),
        inside(2, 40, 5, group=4, members=(2, 3)), outside(3, 40),
    ]  # fmt: skip
    assert {notice.absent for notice in waits.look(looks)} == {(1,), (3,)}


QUIET = {
    "all have come": [inside(0, 400), inside(1, 400)],
    "none has come": [outside(0, 400), outside(1, 400)],
    "its group has come": [
        inside(0, 400, group=3, members=(0, 1)), inside(1, 400, group=3, members=(0, 1)),
        outside(2, 400),
    ],
    "the source of a broadcast has left it": [
        inside(0, 400), Look(1, Record(7, "barrier", since=5 * S), 400 * S),
    ],
    "others of its group are on another host": [inside(0, 400, group=3, members=(0,))],
    "one makes a value for all of its host": [
        Look(1, Record(1, "once_per_host", group=1, members=(0,), since=120 * S, inside=True),
             400 * S),
        outside(0, 400),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_said(name: str) -> None:
    assert Waits(LIMIT).look(QUIET[name]) == []


def test_no_limit_says_nothing_and_knows_who_works() -> None:
    waits = Waits(0)
    assert said(waits, one_is_late(400)) == []
    assert waits.last_work() == 1 * S, "since the wait began"
    assert said(waits, ((410, [inside(0, 410, 1), outside(2, 410, used=400)]) for _ in "1")) == []
    assert waits.last_work() == 410 * S
    waits.look([outside(0, 420), outside(2, 420)])
    assert waits.last_work() is None


def test_what_a_request_for_stacks_makes_a_rank_write_is_no_work() -> None:
    waits = Waits(LIMIT)
    assert len(waits.look([inside(0, 40), outside(1, 40)])) == 1
    waits.begin_again([inside(0, 41), outside(1, 41, moved=5000)])
    waits.look([inside(0, 45), outside(1, 45, moved=5000)])
    assert waits.last_work() == 0


def healthy(seed: int) -> Iterator[list[Look]]:
    """Steps of some seconds with uneven ranks; now and then one evaluates, or saves, for minutes.

    A rank that works uses a processor or moves bytes; one that has come waits.
    """
    draw = random.Random(seed)
    count = draw.choice((2, 3, 8))
    done = [0.0] * count  # seconds of work
    moved = [0] * count
    now = 0.0
    for number in range(1, 40):
        longer = draw.random() < 0.1
        who = draw.randrange(count)
        ends = [
            now + draw.uniform(0, 20) + (draw.uniform(30, 250) if longer and rank == who else 0)
            for rank in range(count)
        ]
        saves = draw.random() < 0.5
        while now < max(ends):
            now += EVERY
            for rank, end in enumerate(ends):
                if end > now:
                    done[rank] += EVERY * draw.uniform(0.25, 4)
                    moved[rank] += draw.randrange(1, 9) if saves else 0
            yield [
                inside(rank, now, end, number)
                if end <= now
                else outside(rank, now, used=done[rank], moved=moved[rank])
                for rank, end in enumerate(ends)
            ]


def test_a_thousand_healthy_programs_hear_nothing() -> None:
    for seed in range(1000):
        waits = Waits(LIMIT)
        for looks in healthy(seed):
            assert waits.look(looks) == [], seed


@pytest.mark.parametrize(("text", "limit"), [("", 30), ("2", 2), ("0.5", 0.5), ("0", 0)])
def test_the_limit_of_the_variable(text: str, limit: float) -> None:
    assert limit_of({"XMP_HANG_NOTICE": text}) == limit * S
    assert limit_of({}) == 30 * S


@pytest.mark.parametrize("text", ["soon", "-1", "1e9", "inf", "nan"])
def test_no_limit_at_all(text: str) -> None:
    with pytest.raises(ValueError, match=r"XMP_HANG_NOTICE is .* a number of seconds"):
        limit_of({"XMP_HANG_NOTICE": text})


def test_the_time_in_which_the_launch_was_stopped_does_not_count() -> None:
    waits = Waits(LIMIT)
    waits.look([inside(0, 10), outside(1, 10)])
    waits.restart(500 * S)
    moments = ((at, [inside(0, at), outside(1, at)]) for at in range(500, 540, EVERY))
    assert [at for at, _ in said(waits, moments)] == [530]
    assert waits.last_work() == 500 * S


IDLE = {
    "nothing is done": ({}, [30, 90]),
    "one works": ({"used": 0.3}, []),
    "one goes from collective to collective": ({"since": 1}, []),
}


@pytest.mark.parametrize("name", IDLE)
def test_stacks_are_worth_a_look(name: str) -> None:
    does, expected = IDLE[name]
    idle = Idle(LIMIT)
    asked = []
    for at in range(0, 300, EVERY):
        mine = {each: rate * at for each, rate in does.items()}
        if idle.look([outside(0, at), outside(1, at, **mine)]):
            asked.append(at)
            idle.begin_again([outside(0, at), outside(1, at, moved=5000, **mine)])
    assert asked == expected


def test_without_a_limit_no_stacks_are_taken() -> None:
    idle = Idle(0)
    assert not any(idle.look([outside(0, at)]) for at in range(0, 300, EVERY))
