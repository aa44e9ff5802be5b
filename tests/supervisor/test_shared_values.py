"""Who makes a shared value, who gets it, and who has the turn: the supervisor's rules as tables."""

from __future__ import annotations

import os
from typing import Any

import pytest

from xmp._processes.messages import replica as messages
from xmp._processes.messages.untrusted import Arrived
from xmp._processes.supervisor.heard_voices import HeardVoice
from xmp._processes.supervisor.shared_values import MOST_KEPT, SharedValues
from xmp._words.types import ReplicaPlan

NO_CONNECTION: Any = None


class Answers:
    """In the place of a voice's connection: what it would have sent."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def post(self, message: Any, descriptors: Any) -> None:
        names = {"MakeValue": "make", "YourTurn": "turn", "NoValue": "none"}
        known = names.get(type(message).__name__)
        self.given.append(known or message.data.decode())


class Table:
    """The values of a launch of three replicas; voices by name, of which the first is its rank."""

    def __init__(self) -> None:
        self.shared = SharedValues([ReplicaPlan(rank, rank, rank) for rank in range(3)])
        self.voices: dict[str, HeardVoice] = {}

    def voice(self, name: str) -> HeardVoice:
        if name not in self.voices:
            answers: Any = Answers()
            self.voices[name] = HeardVoice(NO_CONNECTION, int(name[0]), answers, len(name) > 1)
        return self.voices[name]

    def do(self, step: str) -> None:
        what, name, *rest = step.split()
        voice, beside = self.voice(name), Arrived(NO_CONNECTION, [], 0, False)
        if what == "wants":  # rank 0's
            self.shared._want(messages.WantValue(rest[0], 0, False), voice, beside)
        elif what == "shares":  # that of the first to ask
            self.shared._want(messages.WantValue(rest[0], -1, False), voice, beside)
        elif what == "keeps":
            self.shared._want(messages.WantValue(rest[0], -1, True), voice, beside)
        elif what in ("gives", "raises"):
            data = rest[0].encode()
            self.shared._give(messages.GiveValue(what == "gives", data, 1), voice, beside)
        elif what == "enters":
            self.shared._take_turn(messages.TakeTurn(rest[0]), voice, beside)
        elif what == "returns":
            self.shared._return_turn(voice)
        elif what == "closes":
            self.shared.forget(voice)
        else:
            assert what == "leaves"
            self.shared.leave(voice.local_rank)

    def answers(self) -> dict[str, str]:
        voices: Any = self.voices
        return {name: " ".join(voices[name].connection.given) for name in voices}


CASES: dict[str, tuple[str, dict[str, str]]] = {
    "the owner makes it": (
        "1 wants k, 0 wants k, 0 gives v, 2 wants k",
        {"0": "make", "1": "v", "2": "v"},
    ),
    "the first makes it": ("1 shares k, 0 shares k, 1 gives v", {"1": "make", "0": "v"}),
    "its exception is its outcome": ("0 wants k, 1 wants k, 0 raises E", {"0": "make", "1": "E"}),
    "once all have it, the key is another value": (
        "0 wants k, 0 gives v, 1 wants k, 2 wants k, 0 wants k, 0 gives w, 1 wants k",
        {"0": "make make", "1": "v w", "2": "v"},
    ),
    "the owner has left": ("1 wants k, 0 leaves, 2 wants k", {"0": "", "1": "none", "2": "none"}),
    "the owner left before": ("0 leaves, 1 wants k", {"0": "", "1": "none"}),
    "another left": ("2 leaves, 1 wants k, 0 wants k, 0 gives v", {"2": "", "1": "v", "0": "make"}),
    "those that leave meet": (
        "1 leaves, 1 wants k, 0 leaves, 0 wants k, 0 gives v",
        {"1": "v", "0": "make"},
    ),
    "the owner asks again after an interrupt": (
        "1 wants k, 0 wants k, 0 closes, 0b wants k, 0b gives v",
        {"1": "v", "0": "make", "0b": "make"},
    ),
    "one that waited is gone": (
        "1 wants k, 1 closes, 0 wants k, 0 gives v",
        {"1": "", "0": "make"},
    ),
    "a maker dies": (
        "0a keeps k, 1a keeps k, 1b keeps k, 0a closes, 1a gives v",
        {"0a": "make", "1a": "make", "1b": "v"},
    ),
    "what is kept is kept for all": (
        "0a keeps k, 0a gives v, 1a keeps k, 2a keeps k, 0b keeps k, 0c keeps k",
        {"0a": "make", "1a": "v", "2a": "v", "0b": "v", "0c": "v"},
    ),
    "a failure is not kept": (
        "0a keeps k, 1a keeps k, 2a keeps k, 0a raises E, 1b keeps k",
        {"0a": "make", "1a": "E", "2a": "E", "1b": "make"},
    ),
    "children and replicas do not meet": (
        "0 wants k, 0a keeps k, 0a gives c, 0 gives v, 1 wants k, 1a keeps k",
        {"0": "make", "0a": "make", "1": "v", "1a": "c"},
    ),
    "a child of the owner that has left goes on": (
        "0 leaves, 0a keeps k, 1a keeps k, 0a gives v",
        {"0": "", "0a": "make", "1a": "v"},
    ),
    "what was not asked for": ("1 gives v, 0 wants k", {"1": "", "0": "make"}),
    "turns": (
        "0 enters t, 0a enters t, 1 enters t, 0 returns, 0a closes",
        {"0": "turn", "0a": "turn", "1": "turn"},
    ),
    "a turn that is not wanted any more": (
        "0 enters t, 1 enters t, 2 enters t, 1 closes, 0 returns",
        {"0": "turn", "1": "", "2": "turn"},
    ),
    "turns of two keys": ("0 enters t, 1 enters u", {"0": "turn", "1": "turn"}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_answers(case: str) -> None:
    steps, answers = CASES[case]
    table = Table()
    for step in steps.split(", "):
        name, what, *rest = step.split()
        table.do(" ".join([what, name, *rest]))
    assert table.answers() == answers


def test_only_so_many_values_are_kept() -> None:
    table = Table()
    for number in range(MOST_KEPT + 1):
        table.do(f"keeps 0a k{number}")
        table.do(f"gives 0a v{number}")
        table.do("keeps 1a k0")  # which is wanted all the time
    table.do("keeps 2a k1")
    assert table.answers()["1a"].split() == ["v0"] * (MOST_KEPT + 1)
    assert table.answers()["2a"] == "make", "the one that was wanted longest ago"


def test_the_file_of_a_value_is_closed_with_it() -> None:
    table = Table()
    heard, said = os.pipe()
    table.do("keeps 0a k")
    table.shared._give(
        messages.GiveValue(False, b"E", 1),
        table.voice("0a"),
        Arrived(NO_CONNECTION, [said], 0, True),
    )
    assert os.read(heard, 1) == b""
    os.close(heard)
