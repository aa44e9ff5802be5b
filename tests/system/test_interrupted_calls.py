"""Which blocking calls survive a request for stacks: Python's own do, those of C libraries may not.

faulthandler's handler is installed without SA_RESTART (CPython, Modules/faulthandler.c), so the
kernel ends a system call with EINTR. Python repeats its own (PEP 475).
"""

from __future__ import annotations

import ctypes
import errno
import os
import queue
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import xmp
from tests.support.waiting import until

pytestmark = pytest.mark.failing

SHORT = 0.2
"""Seconds that a call takes which is left alone."""
libc = ctypes.CDLL(None, use_errno=True)


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def whole(call: Callable[[], object]) -> Callable[[], bool]:
    """Return whether a call has taken all of its time."""

    def timed() -> bool:
        begun = time.monotonic()
        call()
        return time.monotonic() - begun >= SHORT * 0.99

    return timed


def receives() -> None:
    ours, theirs = socket.socketpair()
    threading.Timer(SHORT, theirs.sendall, [b"x"]).start()
    assert ours.recv(1) == b"x"


def reads() -> None:
    reader, writer = os.pipe()
    threading.Timer(SHORT, os.write, [writer, b"x"]).start()
    assert os.read(reader, 1) == b"x"


def waits_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    assert not lock.acquire(timeout=SHORT)


def takes_from_a_queue() -> None:
    with pytest.raises(queue.Empty):
        queue.Queue[int]().get(timeout=SHORT)


PYTHON: dict[str, Callable[[], bool]] = {
    "time.sleep": whole(lambda: time.sleep(SHORT)),
    "lock.acquire": whole(waits_for_a_lock),
    "queue.get": whole(takes_from_a_queue),
    "select": whole(lambda: select.select([], [], [], SHORT)),
    "socket.recv": whole(receives),
    "os.read": whole(reads),
    "subprocess": whole(lambda: subprocess.run(["sleep", str(SHORT)], check=True)),
}


def fails(result: int) -> bool:
    return result == -1 and ctypes.get_errno() == errno.EINTR


LIBRARIES: dict[str, Callable[[], bool]] = {
    "nanosleep": lambda: fails(libc.nanosleep(ctypes.byref(Timespec(0, 200_000_000)), None)),
    "poll": lambda: fails(libc.poll(None, 0, 200)),
    "usleep": lambda: fails(libc.usleep(200_000)),
}


def repeats(rank: int, name: str, folder: Path) -> None:
    """Repeat a call until the launcher has asked often enough, or until it is interrupted."""
    (folder / f"begun{rank}").write_text("")
    if name in LIBRARIES:
        while not LIBRARIES[name]():
            pass
        (folder / f"interrupted{rank}").write_text("")
        return
    while not (folder / "asked").exists():
        assert PYTHON[name]()


@pytest.mark.parametrize("name", [*PYTHON, *LIBRARIES])
def test_after_a_request_for_stacks(name: str, tmp_path: Path) -> None:
    options = {"nprocs": 2, "runtime": "cpu", "join": False, "timeout": 60}
    context = xmp.spawn(repeats, (name, tmp_path), **options)
    until(lambda: len([*tmp_path.glob("begun*")]) == 2)
    for _ in range(3):
        context.stacks()

    def interrupted() -> bool:
        context.stacks()
        return len([*tmp_path.glob("interrupted*")]) == 2

    if name in LIBRARIES:
        until(interrupted, 30)
    (tmp_path / "asked").write_text("")
    assert context.join()
