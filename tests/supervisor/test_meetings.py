"""Who has come to a collective with a time limit: the supervisor's rules as tables."""

from __future__ import annotations

from typing import Any

import pytest

from xmp._processes.messages.plain_format import Malformed
from xmp._processes.messages.replica import CallOff, Meet
from xmp._processes.supervisor.heard_voices import HeardVoice
from xmp._processes.supervisor.meetings import _MOST_DECIDED, Meetings

NO_REPLICA: Any = None
LATE = "rank 12 has not come. It sleeps"
BOTH = "ranks 11-12 have not come. It sleeps"


class Answers:
    """In the place of a voice's connection: what it would have sent."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def post(self, message: Any, _: Any) -> None:
        self.given.append(message.words or "met")


class Table:
    """The meetings of ranks 10 to 12, local ranks 0 to 2; a step may begin with its second."""

    def __init__(self, found: str = "It sleeps") -> None:
        self.meetings = Meetings(10, [0, 1, 2], lambda: found)
        self.voices: dict[str, HeardVoice] = {}
        self.now = 0

    def voice(self, name: str) -> HeardVoice:
        if name not in self.voices:
            answers: Any = Answers()
            self.voices[name] = HeardVoice(NO_REPLICA, int(name[0]), answers, False)
        return self.voices[name]

    def do(self, step: str) -> None:
        what, *rest = step.split()
        if what == "at":
            self.now = int(rest[0])
            self.meetings.look(self.now, rest[1:] == ["paused"])
        elif what == "leaves":
            self.meetings.leave(int(rest[0]))
        elif what == "closes":
            self.meetings.forget(self.voice(rest[0]))
        elif what == "refuses":
            self.meetings.call_off(CallOff(rest[1], "refused"), self.voice(rest[0]))
        else:
            assert what == "meets"
            name, key, seconds, *members = rest
            ranks = [*map(int, members or "012")]
            self.meetings.meet(Meet(key, ranks, int(seconds)), self.voice(name), self.now)

    def answers(self) -> dict[str, str]:
        voices: Any = self.voices
        return {name: "; ".join(voices[name].connection.given) for name in voices}


CASES = {
    "all come": ("meets 0 a 5, meets 1 a 5, meets 2 a 5", {"0": "met", "1": "met", "2": "met"}),
    "one is missing": ("meets 0 a 5, meets 1 a 5, at 4", {"0": "", "1": ""}),
    "one has not come": ("meets 0 a 5, meets 1 a 5, at 5", {"0": LATE, "1": LATE}),
    "it comes late": (
        "meets 0 a 5, meets 1 a 5, at 5, meets 2 a 5",
        {"0": LATE, "1": LATE, "2": LATE},
    ),
    "the name is free again": (
        "meets 0 a 5, meets 1 a 5, at 5, meets 2 a 5, meets 0 a 5, meets 1 a 5, meets 2 a 5",
        {"0": f"{LATE}; met", "1": f"{LATE}; met", "2": f"{LATE}; met"},
    ),
    "the shortest limit counts": ("meets 0 a 9, meets 1 a 5, at 5", {"0": LATE, "1": LATE}),
    "some of the ranks": ("meets 0 a 5 0 2, meets 2 a 5 0 2", {"0": "met", "2": "met"}),
    "a rank alone": ("meets 1 a 5 1", {"1": "met"}),
    "two meetings": (
        "meets 0 a 5 0 1, meets 2 b 5 1 2, meets 1 a 5 0 1, at 5",
        {"0": "met", "1": "met", "2": "rank 11 has not come. It sleeps"},
    ),
    "one has left": ("leaves 2, meets 0 a 5", {"0": LATE}),
    "one has left, one is on its way": (
        "leaves 2, meets 0 a 5, meets 1 a 5",
        {"0": LATE, "1": LATE},
    ),
    "one leaves": ("meets 0 a 5, meets 1 a 5, leaves 2", {"0": LATE, "1": LATE}),
    "one that is not needed leaves": (
        "meets 0 a 5 0 1, leaves 2, meets 1 a 5 0 1",
        {"0": "met", "1": "met"},
    ),
    "one is interrupted": (
        "meets 2 a 5, closes 2, meets 0 a 5, meets 1 a 5, at 5",
        {"0": LATE, "1": LATE, "2": ""},
    ),
    "one refuses": (
        "meets 0 a 5, meets 1 a 5, refuses 2 a, meets 2 a 5",
        {"0": "refused", "1": "refused", "2": "refused"},
    ),
    "one refuses before others come": (
        "refuses 2 a, meets 0 a 5, meets 1 a 5",
        {"0": "refused", "1": "refused", "2": ""},
    ),
    "one of other ranks refuses": (
        "meets 0 a 5 0 1, refuses 2 a, meets 1 a 5 0 1",
        {"0": "met", "1": "met", "2": ""},
    ),
    "one refuses what has ended": ("meets 0 a 5, at 5, refuses 1 a", {"0": BOTH, "1": ""}),
    "one refuses what never comes": ("refuses 1 b", {"1": ""}),
    "a pause does not count": (
        "meets 0 a 5, at 1 paused, at 90 paused, at 91, at 94",
        {"0": ""},
    ),
    "the time after a pause does": (
        "meets 0 a 5, meets 1 a 5, at 1 paused, at 91, at 95",
        {"0": LATE, "1": LATE},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_answers(case: str) -> None:
    steps, expected = CASES[case]
    table = Table()
    for step in steps.split(", "):
        table.do(step)
    assert table.answers() == expected


def test_the_place_of_those_that_are_missing() -> None:
    table = Table(found="rank 12 has not come to the barrier at a.py:3: it is asleep")
    for step in ("meets 0 a 5", "meets 1 a 5", "at 5"):
        table.do(step)
    assert table.answers()["0"] == "rank 12 has not come to the barrier at a.py:3: it is asleep"


def test_when_the_next_limit_passes() -> None:
    table = Table()
    assert table.meetings.due() is None
    for step, due in {
        "meets 0 a 5": 5,
        "meets 1 b 3": 3,
        "at 2 paused": None,
        "at 4": 5,
        "at 5": 7,
        "at 7": None,
    }.items():
        table.do(step)
        assert table.meetings.due() == due, step


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("meets 0 a 5 0 7", r"local rank 0 meets \[0, 7\]"),
        ("meets 0 a 5 1 2", r"local rank 0 meets \[1, 2\]"),
        ("meets 0 a 5, meets 0 b 5", "it waits in another meeting"),
    ],
)
def test_what_no_replica_asks(steps: str, words: str) -> None:
    table = Table()
    *before, last = steps.split(", ")
    for step in before:
        table.do(step)
    with pytest.raises(Malformed, match=words):
        table.do(last)


def test_those_that_never_come_are_forgotten() -> None:
    table = Table()
    for number in range(_MOST_DECIDED + 10):
        table.do(f"meets 0 {number} 0")
        table.do(f"at {number}")
    assert len(table.meetings._open) == _MOST_DECIDED
    table.do(f"meets 1 {_MOST_DECIDED + 9} 9")
    assert table.answers()["1"] == BOTH
