"""A handler raises while a replica waits for an answer: the next one is not mistaken for it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import xmp
from tests.support.launching import launch
from tests.support.waiting import until
from xmp import _inside
from xmp._processes.messages.replica import TakeTurn, WantValue, YourTurn


class Late(BaseException):
    """What the program's handler raises."""


def interrupted(ask: Callable[[], Any]) -> None:
    """Ask; the timer's handler raises when the question is on its way and no answer is there."""

    def over(_: int, frame: Any) -> None:
        if frame.f_code.co_name in ("ready", "interruptible"):  # of system/linux, which polls
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Late

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.01)
    try:
        ask()
    except Late:
        return
    raise AssertionError("it had its answer")


def waits_for(path: Path) -> Callable[[], str]:
    def make() -> str:
        until(path.exists, 20)
        return "first"

    return make


def test_the_next_value_is_not_that_of_an_interrupted_question(method: str, tmp_path: Path) -> None:
    over = tmp_path / "over"

    def fn(rank: int) -> tuple[list[str], bool]:
        if rank == 0:
            xmp.once_per_host(waits_for(over))
        else:
            interrupted(lambda: xmp.once_per_host(lambda: "never"))
            over.touch()
        values = [xmp.once_per_host(lambda name=name: name) for name in ("second", "third")]
        return values, xmp.preempted()

    assert list(launch(method, fn)) == [(["second", "third"], False)] * 2


def test_preempted_does_not_take_an_old_answer_for_its_own(method: str, tmp_path: Path) -> None:
    over, done = tmp_path / "over", tmp_path / "done"

    def fn(rank: int) -> bool:
        if rank == 0:
            xmp.once_per_host(waits_for(over))
            done.touch()
            return xmp.preempted()
        interrupted(lambda: xmp.once_per_host(lambda: "never"))
        over.touch()
        until(done.exists, 20)
        return xmp.preempted()

    assert list(launch(method, fn)) == [False, False]


def test_a_turn_that_is_no_longer_wanted_goes_on(method: str, tmp_path: Path) -> None:
    serial, inside, over = xmp.MpSerialExecutor(), tmp_path / "inside", tmp_path / "over"

    def alone() -> None:
        inside.touch()
        until(over.exists, 20)

    def fn(rank: int) -> list[int]:
        if rank == 0:
            serial.run(alone)
        else:
            until(inside.exists, 20)
            interrupted(lambda: serial.run(lambda: None))
            over.touch()
        turns = [serial.run(lambda: rank) for _ in range(3)]
        if rank == 1:
            until((tmp_path / "left").exists, 20)  # alive, but without a turn
        else:
            turns += [serial.run(lambda: rank) for _ in range(3)]
            (tmp_path / "left").touch()
        return turns

    assert list(launch(method, fn)) == [[0] * 6, [1] * 3]


def test_a_turn_is_not_taken_by_two_after_an_interrupt(tmp_path: Path) -> None:
    """The replica that had waited is first in the queue when it asks again."""
    serial, inside, over = xmp.MpSerialExecutor(), tmp_path / "inside", tmp_path / "over"

    def alone() -> None:
        (tmp_path / "one").touch(exist_ok=False)
        time.sleep(0.01)
        (tmp_path / "one").unlink()

    def held() -> None:
        inside.touch()
        until(over.exists, 20)

    def fn(rank: int) -> None:
        if rank == 0:
            serial.run(held)
        elif rank == 1:
            until(inside.exists, 20)
            interrupted(lambda: serial.run(lambda: None))
            over.touch()
        for _ in range(10):
            serial.run(alone)

    launch("forkserver", fn, nprocs=3)


def test_what_interrupts_a_maker_reaches_all(tmp_path: Path) -> None:
    asked, mark = tmp_path / "asked", tmp_path / "mark"

    def make() -> int:
        mark.touch(exist_ok=False)
        until(asked.exists, 20)
        raise Late

    def fn(rank: int) -> str:
        channel = _inside.channel()
        assert channel is not None
        if rank == 1:
            until(mark.exists, 20)
            asked.touch()
        try:
            return channel.share("key", make)
        except Late as error:
            return repr(error)

    assert list(launch("forkserver", fn)) == ["Late()"] * 2


def test_a_value_asked_for_twice_is_kept_for_late_replicas(tmp_path: Path) -> None:
    over = tmp_path / "over"

    def fn(rank: int) -> str:
        channel = _inside.channel()
        assert channel is not None

        def share() -> str:
            return channel.share("key", waits_for(over), owner=0)

        if rank == 1:
            interrupted(share)
            over.touch()
        elif rank == 2:
            until((tmp_path / "again").exists, 20)
        value = share()
        if rank == 1:
            (tmp_path / "again").touch()
        return value

    assert list(launch("forkserver", fn, nprocs=3)) == ["first"] * 3


def falls_asleep(process: psutil.Process) -> None:
    """Wait until a process has slept whenever it was looked at, for a fifth of a second."""
    looks: deque[bool] = deque(maxlen=40)

    def asleep() -> bool:
        looks.append(process.status() == psutil.STATUS_SLEEPING)
        return len(looks) == 40 and all(looks)

    until(asleep)


def asks_and_does_not_read() -> tuple[int, float]:
    """How much the supervisor works after it has sent what its replica had not read for a while."""
    channel: Any = _inside.channel()
    supervisor = psutil.Process(os.getppid())
    with channel._voices.one(1) as voice:
        connection = voice._connection
        for _ in range(14):
            voice.send(WantValue("key", 0, False))
        falls_asleep(supervisor)
        supervisor.suspend()
        until(lambda: supervisor.status() == psutil.STATUS_STOPPED)
        read = 0
        while connection.readable(0):
            connection.recv()
            read += 1
        voice.send(TakeTurn("turn"))  # heard first: what waits is sent with the answer to this
        supervisor.resume()
        while not isinstance(connection.recv()[0], YourTurn):
            pass
    before = sum(supervisor.cpu_times()[:2])
    falls_asleep(supervisor)
    return read, sum(supervisor.cpu_times()[:2]) - before


def test_a_supervisor_that_has_sent_everything_sleeps(tmp_path: Path) -> None:
    made, done = tmp_path / "made", tmp_path / "done"

    def fn(rank: int) -> tuple[int, float] | None:
        channel: Any = _inside.channel()
        if rank == 1:
            until(made.exists)
            used = asks_and_does_not_read()
            done.touch()
            return used
        if rank == 0:
            channel.share("key", lambda: b"x" * 20_000)
            made.touch()
        until(done.exists, 20)
        return None

    read, used = launch("forkserver", fn, nprocs=3)[1]
    assert read < 14, "not all of it had been sent"
    assert used < 0.2


def test_a_maker_that_exits_ends_all_that_wait(method: str) -> None:
    results = launch(method, lambda rank: xmp.once_per_host(lambda: sys.exit(0)), timeout=20)
    assert list(results) == [None, None]
