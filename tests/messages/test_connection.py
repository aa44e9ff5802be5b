"""Messages with descriptors between our own processes, at the kernel's limits."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import ANY

import pytest

from xmp._processes.messages.connection import Closed, Connection, pair
from xmp._processes.messages.launch import (
    CannotMake,
    Interrupt,
    LoadFailed,
    ReplicaReturned,
    StackTexts,
)
from xmp._processes.messages.plain_format import Malformed
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


def test_a_large_pickle_takes_the_detour() -> None:
    left, right = pair()
    value = StackTexts({0: "x" * 3_000_000})
    left.send(value)
    assert right.recv() == (value, [])
    close(left, right)


def test_a_large_plain_message_comes_in_parts() -> None:
    left, right = pair()
    heard, said = os.pipe()
    value = LoadFailed("", "", os.urandom(3_000_000))
    left.post(value, [said] * 600)
    os.close(said)
    count = len(left.waiting)
    assert count > 30
    with ThreadPoolExecutor(1) as pool:  # no socket's buffer has room for all of it
        received = pool.submit(right.recv, 20)
        left.send(WORDS)
        assert received.result() == (value, ANY)
    assert len(received.result()[1]) == 600
    assert right.recv()[0] == WORDS
    for descriptor in (heard, *received.result()[1]):
        os.close(descriptor)
    close(left, right)


def test_a_message_that_was_interrupted_is_dropped() -> None:
    left, right = pair()
    heard, said = os.pipe()
    left.post(LoadFailed("", "", b"x" * 150_000), [said])
    os.close(said)
    del left.waiting[1]  # its sender was interrupted here
    assert left.flush()
    left.send(WORDS)
    assert right.recv() == (WORDS, [])
    assert os.read(heard, 1) == b"", "its descriptor is closed"
    os.close(heard)
    close(left, right)


def test_one_that_opens_no_pickle_says_so() -> None:
    left, right = pair()
    right.opens_pickles = False
    for size in (1, 3_000_000):
        left.send(StackTexts({0: "x" * size}))
        with pytest.raises(Malformed, match="its kind is"):
            right.recv()
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


def as_another_user(send: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        send()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.root
@pytest.mark.skipif("passcred" in os.environ.get("XMP_WITHOUT", ""), reason="no senders")
def test_a_fork_that_has_become_another_user_is_not_heard() -> None:
    left, right = pair()
    heard, said = os.pipe()
    as_another_user(lambda: left.send(StackTexts({0: "another's"}), [said]))
    os.close(said)
    as_another_user(lambda: left.send_prepared(b""))
    left.send(WORDS)
    assert right.recv(10) == (WORDS, [])
    assert os.read(heard, 1) == b"", "its descriptor is closed"
    os.close(heard)
    close(left, right)


@pytest.mark.root
def test_one_that_has_become_another_user_is_heard_where_it_made_the_connection() -> None:
    def made_before() -> None:
        left, right = pair()
        if os.fork() == 0:
            os._exit(right.recv(10)[0] != WORDS or right.recv(10)[0] != Interrupt())
        left.send(WORDS)
        os.setuid(65534)
        left.send(Interrupt())
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))

    pid = os.fork()
    if pid == 0:
        made_before()
    assert os.waitpid(pid, 0)[1] == 0
