"""The rules for a launch that its launcher ends, as tables of what comes and what is done."""

from __future__ import annotations

import pytest

from xmp._rules.ending_rules import (
    ANSWER_WAIT,
    EndingEvent,
    EndingRules,
    Raised,
    SigtermRules,
    Waited,
    ends_the_launch,
)

SECOND = 1_000_000_000
AT = 100 * SECOND
GRACE = 5 * SECOND
LATE = 5 + 2 * ANSWER_WAIT / SECOND
"""The seconds after which what has not ended is killed."""


def waited(seconds: float) -> Waited:
    return Waited(AT + int(seconds * SECOND))


def raised(kind: type[BaseException], seconds: float = 0.5) -> Raised:
    return Raised(AT + int(seconds * SECOND), kind)


def done(events: list[EndingEvent], why: type[BaseException], grace: int = GRACE) -> list[str]:
    rules = EndingRules(AT, grace, why)
    return [action for event in events if (action := rules.feed(event))]


CTRL_C = KeyboardInterrupt


class Alarm(Exception):
    """What a handler of the program raises."""


class Interrupted(KeyboardInterrupt):
    """A Ctrl-C, as a program's own handler may raise it."""


TABLE: dict[str, tuple[type[BaseException], list[EndingEvent], list[str]]] = {
    "it ends soon": (CTRL_C, [waited(0.9)], []),
    "it does not end within a second": (CTRL_C, [waited(1), waited(2), waited(LATE - 1)], ["say"]),
    "it does not end at all": (CTRL_C, [waited(1), waited(LATE)], ["say", "kill"]),
    "another Ctrl-C": (CTRL_C, [raised(CTRL_C)], ["kill"]),
    "another Ctrl-C after a while": (CTRL_C, [waited(1), raised(CTRL_C, 3)], ["say", "kill"]),
    "a Ctrl-C after something else": (SystemExit, [raised(CTRL_C)], ["kill"]),
    "a Ctrl-C of the program's own": (SystemExit, [raised(Interrupted)], ["kill"]),
    "an alarm meanwhile": (CTRL_C, [raised(Alarm), waited(1)], ["note", "say"]),
    "an alarm that repeats": (CTRL_C, [raised(Alarm), raised(Alarm, 2), waited(LATE)],
                              ["note", "say"]),
    "the alarm that ends it repeats": (Alarm, [raised(Alarm), raised(Alarm, 2)], []),
    "two kinds": (CTRL_C, [raised(Alarm), raised(ValueError), raised(Alarm)], ["note", "note"]),
    "an alarm while what has not ended is killed": (
        CTRL_C, [waited(1), waited(LATE), raised(Alarm, LATE)], ["say", "kill", "raise"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_an_ending(case: str) -> None:
    why, events, expected = TABLE[case]
    assert done(events, why) == expected


def test_when_the_launcher_looks_again() -> None:
    rules = EndingRules(AT, GRACE, CTRL_C)
    assert rules.until == AT + SECOND
    rules.feed(raised(Alarm))
    assert rules.until == AT + SECOND, "an exception shortens nothing"
    rules.feed(waited(1))
    assert rules.until == AT + int(LATE * SECOND)


def test_with_a_short_grace_xmp_says_earlier_what_it_waits_for() -> None:
    assert EndingRules(AT, SECOND // 10, CTRL_C).until == AT + SECOND // 10
    assert done([waited(0)], CTRL_C, grace=0) == ["say"]


@pytest.mark.parametrize(
    ("error", "owned", "ends"),
    [
        (KeyboardInterrupt(), False, True),
        (Interrupted(), False, True),
        (SystemExit(3), False, True),
        (Alarm(), False, False),
        (Alarm(), True, True),
    ],
)
def test_which_exceptions_end_a_launch(error: BaseException, owned: bool, ends: bool) -> None:
    assert ends_the_launch(error, owned) is ends


SIGTERM: dict[str, tuple[list[int | bool], list[int], list[str]]] = {
    "no signal": ([], [7], []),
    "the replicas get the signal": ([10, False], [], ["end"]),
    "they have not answered": ([10], [11], ["end"]),
    "they end by themselves": ([10, True], [], []),
    "they agree later": ([10, False, True], [], []),
    "a second signal, and no answer": ([10, True, 20], [15, 20], ["report", "end"]),
    "a failure is older than the signal": ([10, False], [12, 9], ["report", "end"]),
    "a failure follows from the signal": ([10, False], [10, 12], ["end"]),
}
"""When signals came, and the answers; the times of failures; what is done at the end."""


@pytest.mark.parametrize("case", SIGTERM)
def test_a_sigterm(case: str) -> None:
    events, failures, expected = SIGTERM[case]
    rules = SigtermRules()
    for event in events:
        rules.answered(event) if isinstance(event, bool) else rules.came(event)
    assert rules.over(failures) == expected
