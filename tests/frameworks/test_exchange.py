"""Objects on a wire: what comes back, what is refused, what a stranger's message does."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

from xmp._inside.frameworks import _exchange
from xmp._inside.frameworks._seal import CODE_SIZE, Seal


class ThreadWire:
    """Threads that hand each other bytes; a part is a bytearray."""

    key = b"of this launch"
    makers = (str,)

    def __init__(self, rank: int, size: int, table: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._table, self._barrier = rank, size, table, barrier
        self.seal = Seal(self.key, "all")
        self.rounds: list[str] = []

    def _exchange(self, name: str, value: Any) -> list[Any]:
        self.rounds.append(name)
        self._table[self.rank] = value
        self._barrier.wait(10)
        found = list(self._table)
        self._barrier.wait(10)
        return found

    def keep(self, value: Any) -> tuple[Any, Any] | None:
        return ("kept", bytearray(value.encode())) if isinstance(value, Kept) else None

    def restore(self, description: Any, part: Any) -> Any:
        assert description == "kept"
        return Kept(part.decode())

    def reduce(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        return (str, ("foreign",)) if isinstance(value, Foreign) else None

    def part(self, buffer: memoryview) -> Any:
        return bytearray(buffer)

    def buffer(self, part: Any) -> Any:
        return part

    def gather_heads(self, head: bytes) -> list[bytes]:
        return self._exchange("heads", head)

    def broadcast_head(self, head: bytes | None, src: int) -> bytes:
        found: bytes = self._exchange("head", head)[src]
        return found

    def gather_part(self, part: Any | None, sizes: Sequence[int]) -> list[Any]:
        found = self._exchange("parts", part)
        assert [len(p or b"") for p in found] == list(sizes)
        return [bytearray(p or b"") for p in found]

    def broadcast_part(self, part: Any | None, size: int, src: int) -> Any:
        found = self._exchange("part", part)[src]
        assert len(found) == size
        return bytearray(found)


class Kept(str):
    """Travels outside the pickle."""


class Foreign:
    """Must not be pickled its own way."""

    def __reduce__(self) -> Any:
        raise AssertionError


class KeylessWire(ThreadWire):
    """Of replicas that share no key."""

    key = b""


def on_threads(
    size: int, body: Callable[[ThreadWire], Any], kind: type[ThreadWire] = ThreadWire
) -> list[Any]:
    table, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda r: body(kind(r, size, table, barrier)), range(size)))


@pytest.mark.parametrize("kind", [ThreadWire, KeylessWire])
def test_everybody_gets_what_everybody_holds(kind: type[ThreadWire]) -> None:
    def body(wire: ThreadWire) -> Any:
        value = {"rank": wire.rank, "big": np.full(wire.rank * 3000, wire.rank), "f": Foreign()}
        return _exchange.all_gather(value, wire)

    for gathered in on_threads(3, body, kind):
        assert [g["rank"] for g in gathered] == [0, 1, 2]
        assert [g["f"] for g in gathered] == ["foreign"] * 3
        for rank, each in enumerate(gathered):
            assert each["big"].shape == (rank * 3000,)
            assert (each["big"] == rank).all()
            each["big"] += 1  # its own, and writable


def test_the_sender_keeps_its_object_and_sends_parts_once() -> None:
    kept = Kept("tensor")
    sent = {"a": kept, "b": [kept], "rest": lambda: 7}

    def body(wire: ThreadWire) -> Any:
        return _exchange.broadcast(sent if wire.rank == 1 else None, 1, wire), wire.rounds

    results = on_threads(2, body)
    assert results[1][0] is sent
    received, rounds = results[0]
    assert received["a"] == "tensor"
    assert received["b"][0] is received["a"]
    assert received["rest"]() == 7
    assert rounds == ["head", "part"]


def test_a_short_value_takes_one_round() -> None:
    def body(wire: ThreadWire) -> Any:
        _exchange.all_gather([1, 2.5, np.ones(10)], wire)
        return wire.rounds

    assert on_threads(2, body) == [["heads"]] * 2


PLAIN = [
    *(
        None,
        True,
        False,
        0,
        -1,
        255,
        -256,
        2**200,
        0.1,
        float("inf"),
        1 - 2j,
        "",
        "é\udc80",
        b"\0x",
    ),
    *([], (), {}, [1, (2.5, [None])], {"a": {1: b"x"}, (1, "t"): [True]}),
    *(OrderedDict(), OrderedDict(b=[1], a=OrderedDict(c=None))),
]
ARRAYS = [
    *(np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6, dtype="i2").reshape(2, 3))),
    *(np.array(3), np.zeros((0, 3)), np.arange(5)[::2], np.ones(3, ">f4"), np.array(["ab", "c"])),
    *(np.float32(2.5), np.bool_(True), np.datetime64("2020-01-01"), np.full(9000, 1j)),
]


@pytest.mark.parametrize("kind", [ThreadWire, KeylessWire])
@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_a_plain_value_comes_back_as_the_type_it_was(value: Any, kind: type[ThreadWire]) -> None:
    [[mine, theirs], _] = on_threads(2, lambda wire: _exchange.all_gather(value, wire), kind)
    assert repr(theirs) == repr(mine) == repr(value)


@pytest.mark.parametrize("kind", [ThreadWire, KeylessWire])
@pytest.mark.parametrize("value", ARRAYS, ids=lambda each: f"{each.dtype}{each.shape}")
def test_an_array_comes_back_as_the_type_it_was(value: Any, kind: type[ThreadWire]) -> None:
    [[_, theirs], _] = on_threads(2, lambda wire: _exchange.all_gather(value, wire), kind)
    assert type(theirs) is type(value)
    assert theirs.dtype == value.dtype
    assert np.array_equal(theirs, value)
    assert np.isfortran(theirs) == np.isfortran(value)


class Point(NamedTuple):
    x: int


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Point(1), "test_exchange.Point cannot be sent"),
        ({"deep": [ValueError("no")]}, "builtins.ValueError cannot be sent"),
        (np.array([None]), "numpy.ndarray cannot be sent"),
        (lambda: 7, "builtins.function cannot be sent"),
        (defaultdict(int), "collections.defaultdict cannot be sent"),
        (CYCLE, "within itself"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_other_objects_are_refused_by_name_without_a_key(value: Any, named: str) -> None:
    wire = KeylessWire(0, 1, [None], threading.Barrier(1))
    with pytest.raises(TypeError, match=named) as caught:
        _exchange.broadcast(value, 0, wire)
    assert "Set XMP_JOB_SECRET" in str(caught.value)
    assert wire.rounds == []  # nothing was sent


class Runs:
    """A pickle that runs code when it is opened."""

    def __reduce__(self) -> Any:
        return RAN.append, (1,)


RAN: list[int] = []


class Forged(ThreadWire):
    """Its messages are those of a stranger who knows how xmp's look."""

    def gather_heads(self, head: bytes) -> list[bytes]:
        self._exchange("heads", head)
        return [self.forged(head)] * self.size

    def broadcast_head(self, head: bytes | None, src: int) -> bytes:
        found = super().broadcast_head(head, src)
        return found if head is not None else self.forged(found)

    def forged(self, message: bytes) -> bytes:
        body = pickle.dumps((pickle.dumps(Runs()), []))
        return body if not self.key else message[:CODE_SIZE] + body


class ForgedKeyless(Forged, KeylessWire):
    pass


@pytest.mark.parametrize("kind", [Forged, ForgedKeyless])
@pytest.mark.parametrize("collective", ["broadcast", "all_gather"])
def test_a_strangers_pickle_is_not_opened(collective: str, kind: type[ThreadWire]) -> None:
    def body(wire: ThreadWire) -> str:
        try:
            if collective == "broadcast":
                _exchange.broadcast("mine", 1, wire)
            else:
                _exchange.all_gather("mine", wire)
        except (RuntimeError, ValueError) as error:
            return type(error).__name__
        return ""

    refused = "RuntimeError" if kind is Forged else "Malformed"
    assert on_threads(2, body, kind)[0] == refused
    assert not RAN
