"""Whether a fork is safe, asked while other threads of the launcher start, end and open files."""

from __future__ import annotations

import _thread
import os
import threading
import time

import pytest

from tests.support.waiting import until
from xmp._processes.system import fork_safety
from xmp._words.types import ForkRules


def test_a_thread_that_is_about_to_end_is_no_native_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like one that has been joined: the kernel counts it, ``threading`` does not know it."""
    last, sleep = threading.Lock(), time.sleep

    def once_somebody_waits(seconds: float) -> None:
        if last.locked():
            last.release()
        sleep(seconds)

    last.acquire()
    _thread.start_new_thread(last.acquire, ())
    until(lambda: fork_safety.native_threads(True))
    monkeypatch.setattr(fork_safety.time, "sleep", once_somebody_waits)
    monkeypatch.setattr(fork_safety, "_SETTLE", 10.0)
    assert (
        fork_safety.culprits(ForkRules(), fork_safety.connected_sockets(), python_threads=True)
        == []
    )


def test_a_socket_that_has_become_a_pipe_meanwhile_leaves_nothing_open() -> None:
    reader, writer = os.pipe()
    before = os.listdir("/proc/self/fd")
    assert fork_safety._peers({reader: "socket:[1]"}) == {}
    assert len(os.listdir("/proc/self/fd")) == len(before)
    os.close(reader)
    os.close(writer)
