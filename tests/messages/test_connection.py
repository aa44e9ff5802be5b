"""Messages with descriptors between our own processes, at the kernel's limits."""

from __future__ import annotations

import os
import resource

import pytest

from xmp._processes.messages.connection import Closed, Connection, pair
from xmp._processes.messages.launch import CannotMake, Interrupt, LoadFailed, ReplicaReturned
from xmp._processes.messages.timeline import Timeline

WORDS = CannotMake("last words")


def close(*ends: Connection) -> None:
    for end in ends:
        end.close()


def test_values_arrive_whole_and_in_order() -> None:
    left, right = pair()
    for value in (LoadFailed("t", "m", None), LoadFailed("", "", b"x" * 50_000), Interrupt()):
        left.send(value)
        got = right.recv()[0]
        assert (type(got), got) == (type(value), value)
    close(left, right)


def test_a_large_value_takes_the_detour() -> None:
    left, right = pair()
    value = LoadFailed("", "", os.urandom(3_000_000))
    left.send(value)
    assert right.recv() == (value, [])
    close(left, right)


@pytest.mark.parametrize("count", [1, 250, 251, 600])
def test_any_number_of_descriptors(count: int) -> None:
    left, right = pair()
    heard, said = os.pipe()
    left.send(WORDS, [said] * count)
    os.close(said)
    value, got = right.recv()
    assert value == WORDS
    assert len(got) == count
    os.write(got[-1], b"!")
    assert os.read(heard, 1) == b"!"
    for descriptor in (heard, *got):
        os.close(descriptor)
    close(left, right)


def test_lost_descriptors_are_an_error() -> None:
    left, right = pair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    left.send(WORDS, [left.fileno()] * 40)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = [number for number in range(1000) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[5], hard))
    try:
        with pytest.raises(OSError, match="too many open files"):
            right.recv()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        close(left, right)


def test_the_end_is_noticed() -> None:
    left, right = pair()
    left.send(WORDS)
    left.close()
    assert right.recv()[0] == WORDS
    with pytest.raises(Closed):
        right.recv()
    with pytest.raises(Closed):
        right.send(Interrupt())
    right.close()


def test_last_words_arrive_from_one_that_has_not_heard_ours() -> None:
    left, right = pair()
    right.send(Interrupt())
    left.send(WORDS)
    left.close()
    assert right.recv()[0] == WORDS
    with pytest.raises(Closed):
        right.recv()
    right.close()


def test_nothing_within_the_time() -> None:
    left, right = pair()
    with pytest.raises(TimeoutError):
        right.recv(0.01)
    close(left, right)


def test_a_full_socket_keeps_the_rest() -> None:
    left, right = pair()
    for number in range(1000):
        left.post(ReplicaReturned(number, b"x" * 4000, 4000, Timeline(), []))
    assert not left.flush()
    assert left.waiting
    got = []
    while len(got) < 1000:
        got.append(right.recv()[0][0])
        left.flush()
    assert got == list(range(1000))
    close(left, right)


def test_it_moves_out_of_the_way() -> None:
    left, right = pair()
    left = left.moved(100)
    assert left.fileno() >= 100
    left.send(WORDS)
    assert right.recv()[0] == WORDS
    close(left, right)


def test_another_kind_than_was_expected_is_named() -> None:
    left, right = pair()
    left.send(WORDS)
    with pytest.raises(TypeError, match="expected Interrupt, received CannotMake"):
        right.expect(Interrupt)
    close(left, right)
