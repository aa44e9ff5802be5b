"""Messages with plain fields: what is written is read, and nothing else is."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from xmp._processes.messages import launch, replica
from xmp._processes.messages.plain_format import PICKLED, PLAIN, Malformed, decoded, encoded
from xmp._processes.messages.timeline import Timeline

FROM_REPLICAS = {
    *("AskPreempted", "Beat", "BreakpointReached", "CallOff", "DebuggerLeft", "ExceptionRaised"),
    *("ExitCalled", "FunctionEntered", "FunctionLeft", "GiveValue", "Meet", "OpenVoice"),
    "PhaseBegun",
    *("ResultReady", "ReturnTurn", "ShowInCell", "Synchronise", "TakeTurn", "WantValue"),
}
TO_SUPERVISORS = {
    *("AnswerDebugger", "Interrupt", "InterruptDebugger", "Kill", "Pause", "Preempt", "Resume"),
    *("SetGrace", "Stop", "TakeStacks"),
}
ROUNDS = 30
TEXTS = ("", "a", "zwölf\n", "\udcff", "\0", "x" * 70_000, "日本語")
DATA = (b"", b"\0", bytes(range(256)), b"x" * 70_000)


def number(draw: random.Random) -> int:
    return draw.choice([0, 1, -1, 2**63 - 1, -(2**63), draw.randrange(-(2**40), 2**40)])


VALUES: dict[str, Callable[[random.Random], Any]] = {
    "int": number,
    "float": lambda draw: draw.choice([0.0, -1.5, 1e300, float("inf")]),
    "bool": lambda draw: draw.random() < 0.5,
    "str": lambda draw: draw.choice(TEXTS),
    "bytes": lambda draw: draw.choice(DATA),
    "bytes | None": lambda draw: draw.choice([None, *DATA]),
    "list[str]": lambda draw: draw.choices(TEXTS, k=draw.randrange(4)),
    "list[int]": lambda draw: [number(draw) for _ in range(draw.randrange(4))],
    "Timeline": lambda draw: Timeline(*(number(draw) for _ in range(8))),
}


def drawn(cls: Any, draw: random.Random) -> Any:
    """A message of this class, with fields drawn by their annotations."""
    kinds = [getattr(each, "__forward_arg__", each) for each in cls.__annotations__.values()]
    return cls(*(VALUES[kind](draw) for kind in kinds))


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_every_plain_message_comes_back(name: str) -> None:
    draw = random.Random(name)
    for _ in range(ROUNDS):
        message = drawn(PLAIN[name], draw)
        back = decoded(encoded(message), opens_pickles=False)
        assert (type(back), back) == (type(message), message)


def test_what_a_supervisor_receives_is_plain() -> None:
    assert {*PLAIN} >= FROM_REPLICAS | TO_SUPERVISORS
    sent = {name for module in (replica, launch) for name in module.__all__}
    assert {"StartLaunch", "FreshReplicaOrder", "Done"} <= sent - {*PLAIN}


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_what_is_cut_or_has_more_is_malformed(name: str) -> None:
    draw = random.Random(name)
    data = encoded(drawn(PLAIN[name], draw))
    for end in {0, 1, len(data) // 2, len(data) - 1} - {len(data)}:
        with pytest.raises(Malformed):
            decoded(data[:end], opens_pickles=False)
    with pytest.raises(Malformed, match="bytes follow a whole"):
        decoded(data + b"\0", opens_pickles=False)


def test_garbage_is_malformed_or_a_message() -> None:
    draw = random.Random(0)
    refused = 0
    for _ in range(20_000):
        data = draw.randbytes(draw.randrange(40))
        try:
            decoded(data, opens_pickles=False)
        except Malformed:
            refused += 1
    assert refused > 15_000


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def test_a_pickle_is_not_opened(tmp_path: Any) -> None:
    data = encoded(launch.StackTexts({0: Evil(str(tmp_path / "ran"))}))  # type: ignore[dict-item]
    assert data[0] == PICKLED
    with pytest.raises(Malformed, match="its kind is 0"):
        decoded(data, opens_pickles=False)
    assert not (tmp_path / "ran").exists()


def phase(name: bytes, length: int) -> bytes:
    head = encoded(replica.PhaseBegun("", 0))[:1]
    return head + struct.pack("<I", length) + name + struct.pack("<q", 0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (phase(b"key", 2**32 - 1), "4294967295 bytes are announced"),
        (phase(b"\xff\xfe", 2), "is not UTF-8"),
        (encoded(replica.WantValue("", 0, True))[:-1] + b"\2", "neither 0 nor 1"),
        (
            encoded(replica.ResultReady(0, None, 0, Timeline(), [], False))[:-5] + b"\xff" * 4,
            "4294967295 texts are announced",
        ),
        (b"", "is empty"),
    ],
)
def test_lengths_and_values_are_checked(data: bytes, words: str) -> None:
    assert decoded(phase(b"key", 3), opens_pickles=False)[0] == "key"
    with pytest.raises(Malformed, match=words):
        decoded(data, opens_pickles=False)
