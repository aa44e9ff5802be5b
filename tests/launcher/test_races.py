"""Races: what comes between two lines of xmp, or twice at once."""

from __future__ import annotations

import fcntl
import math
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import BEGIN, launch
from tests.support.stage import Script
from tests.support.waiting import until
from xmp._os.log import say
from xmp._processes.system import processes
from xmp._processes.terminal.console import on_quit


def test_a_launcher_never_kills_its_own_group(script: Script) -> None:
    """The script is alone in its group."""
    source = BEGIN + (
        "import signal\n"
        "def fn(rank):\n    while True:\n        signal.pause()\n"
        "if __name__ == '__main__':\n"
        "    context = start(fn, join=False)\n"
        "    context._launch.link.supervisor = 0  # as before it is known\n"
        "    context._launch.end_within(0)\n"
        "    print(context._launch.finished)\n"
    )
    done = script(source, "forkserver")
    assert done.out == "True\n", done


def test_what_has_ended_can_be_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    processes.kill(process.pid)
    processes.kill(0)


def test_a_line_within_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python refuses the write of a handler during another write."""
    reader, writer = os.pipe()
    main, came, got = threading.main_thread().ident, threading.Event(), [0]
    assert main is not None

    def waiting() -> int:
        (count,) = struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))
        return int(count)

    def read() -> None:
        try:
            until(lambda: waiting() >= 65536)
            signal.pthread_kill(main, signal.SIGQUIT)
            came.wait(10)
        finally:
            while data := os.read(reader, 1 << 20):
                got[0] += len(data)

    def asked() -> None:
        came.set()
        say("asked for")

    thread = threading.Thread(target=read)
    thread.start()
    with open(writer, "w", buffering=1) as errors, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", errors)
        with on_quit(asked):
            say("x" * 1_000_000)
    thread.join(10)
    os.close(reader)
    assert came.is_set()
    assert got[0] >= 1_000_001


@pytest.mark.parametrize("restarts", [0, 1])
def test_two_threads_wait_without_an_end(restarts: int, tmp_path: Path) -> None:
    go, results = tmp_path / "go", list[Any]()

    def fn(rank: int) -> None:
        until(go.exists, 20)

    context = launch("forkserver", fn, join=False, max_restarts=restarts)

    def join() -> None:
        try:
            results.append(context.join(timeout=math.inf))
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=join) for _ in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join(0.2)
    go.touch()
    for thread in threads:
        thread.join(20)
    assert results == [True, True]
