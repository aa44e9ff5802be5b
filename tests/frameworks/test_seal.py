"""Messages between replicas: which are refused, and what bytes of a stranger can be read as."""

from __future__ import annotations

import random
import struct
from collections import OrderedDict
from typing import Any

import pytest

from xmp._inside.frameworks import _plain_values
from xmp._inside.frameworks._plain_values import Malformed, array_of
from xmp._inside.frameworks._seal import CODE_SIZE, Seal
from xmp._inside.launch_key import KEY_SIZE, derived, of_environment
from xmp._words.replica_info import ReplicaInfo

KEY = b"k" * KEY_SIZE
SENT: dict[str, Any] = {
    "key": KEY, "group": "0", "operation": "broadcast", "round": 2, "rank": 1, "body": b"a pickle"
}  # fmt: skip
CHANGES = {
    "key": b"l" * KEY_SIZE,
    "group": "1",
    "operation": "all_gather",
    "round": 3,
    "rank": 0,
    "body": b"a pickl3",
}


def message(
    key: bytes, group: str, operation: str, round: int, rank: int, body: bytes
) -> tuple[Any, bytes]:
    """The codes of a round, and the message of a rank in it."""
    seal = Seal(key, group)
    for _ in range(round):
        codes = seal.next(operation)
    return codes, codes.closed(rank, body)


def test_a_message_is_opened_where_it_belongs() -> None:
    codes, sent = message(**SENT)
    assert codes.opened(1, sent) == b"a pickle"
    assert Seal(b"", "0").next("broadcast").opened(1, b"plain") == b"plain"


@pytest.mark.parametrize("field", CHANGES)
def test_a_message_of_anything_else_is_refused(field: str) -> None:
    codes, _ = message(**SENT)
    _, other = message(**{**SENT, field: CHANGES[field]})
    if field == "body":
        other = message(**SENT)[1][:CODE_SIZE] + other[CODE_SIZE:]
    with pytest.raises(RuntimeError, match=r"xmp\.broadcast\(\): the message of rank 1 is not"):
        codes.opened(1, other)


@pytest.mark.parametrize("cut", [0, 1, CODE_SIZE, -1])
def test_a_message_that_is_cut_is_refused(cut: int) -> None:
    codes, sent = message(**SENT)
    with pytest.raises(RuntimeError, match="was not opened"):
        codes.opened(1, sent[:cut])


ABOUT = ("hosts", "job", 3, "salt")


def test_keys_of_a_secret_differ_by_all_that_they_are_about() -> None:
    changed = [(*ABOUT[:i], "x", *ABOUT[i + 1 :]) for i in range(len(ABOUT))]
    keys = {derived(b"secret", *ABOUT), derived(b"secre", *ABOUT, "t")}
    keys |= {derived(b"secret", *each) for each in changed}
    assert len(keys) == 2 + len(ABOUT)
    assert {len(key) for key in keys} == {KEY_SIZE}
    assert derived(b"", *ABOUT) == b""


def test_processes_of_another_launcher_have_a_key_if_there_is_a_secret() -> None:
    def key(world: int, **env: str) -> bytes:
        return of_environment(ReplicaInfo(0, 0, world, 1), env)

    assert key(2) == b""
    assert len({key(2, XMP_JOB_SECRET="a"), key(2, XMP_JOB_SECRET="b"), key(1), b""}) == 4
    assert key(2, XMP_JOB_SECRET="a") == key(2, XMP_JOB_SECRET="a")


DEEP = b"l" + struct.pack("<Q", 1)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"i", b"n" + bytes(7), b"z" + bytes(8), b"x" + bytes(8), b"n" + bytes(8) + b"n",
        b"s" + struct.pack("<Q", 1 << 60), b"l" + struct.pack("<Q", 1 << 60),
        b"s" + struct.pack("<Q", 1) + b"\xff", b"f" + struct.pack("<Q", 1) + b"1",
        b"d" + struct.pack("<Q", 1) + b"n" + bytes(8), DEEP * 10_000,
        b"d" + struct.pack("<Q", 2) + b"l" + bytes(8) + b"n" + bytes(8),
        b"o" + struct.pack("<Q", 1) + b"n" + bytes(8),
    ],
    ids=lambda data: data[:12].hex(),
)  # fmt: skip
def test_bytes_that_are_no_value_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        _plain_values.decoded(data)


def test_changed_bytes_are_another_value_or_malformed() -> None:
    chance = random.Random(7)
    good = _plain_values.encoded(
        {"a": [1, 2.5, None, True, b"x"], "b": ("t", 1j), 3: OrderedDict(d=1)}
    )
    for _ in range(5000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice(b"nbifcsyltdox\0\1\xff")
        try:
            _plain_values.decoded(bytes(data))
        except Malformed:
            pass


@pytest.mark.parametrize("name", ["O", "|O", "i4,i4", "|V8", "float32", "dtype", "finfo", "|S0"])
def test_an_array_holds_numbers_or_texts(name: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        array_of((name, (1,), "C"), bytearray(8))
