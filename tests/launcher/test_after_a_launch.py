"""After a launch the launcher is as it was, and a replica has nothing of ours."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from typing import Any

import pytest

import xmp
from tests.support.launching import launch, state
from tests.support.stage import Script


def own_state() -> dict[str, Any]:
    gc.collect()  # an error of an earlier test has Python's excepthook replaced while it lives
    return {
        **state(0),
        "environ": dict(os.environ),
        "threads": threading.enumerate(),
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "wakeup": signal.set_wakeup_fd(-1),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.stdout, sys.stderr),
        "fault": __import__("faulthandler").is_enabled(),
        "meta": list(sys.meta_path),
        "trace": (sys.gettrace(), sys.getprofile()),
    }


@pytest.mark.parametrize("ending", ["well", "raises", "terminated"])
def test_the_launcher_is_as_it_was(method: str, ending: str) -> None:
    def fn(rank: int) -> int:
        if ending == "raises" and rank == 1:
            raise ValueError
        if ending == "terminated":
            threading.Event().wait(60)
        return rank

    launch(method, state)  # what is imported by the first use is imported now
    before = own_state()
    if ending == "terminated":
        launch(method, fn, join=False).terminate()
    elif ending == "raises":
        with pytest.raises(xmp.ReplicaRaised):
            launch(method, fn)
    else:
        launch(method, fn, env={"EBT_A": "1"}, backend=None, threads=1)
    assert own_state() == before


def test_files_that_the_launcher_opens_afterwards_have_low_numbers(method: str) -> None:
    with open(os.devnull) as before:
        number = before.fileno()
    launch(method, state)
    with open(os.devnull) as after:
        assert after.fileno() <= number


TEN = """
import json, os, psutil, sys, threading, time
import xmp

def fn(rank):
    return rank

def names():
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            found.append(process.name())
        except psutil.Error:  # it has ended
            pass
    return sorted(found)

def census():
    return [len(os.listdir("/proc/self/fd")), threading.active_count(), names()]

def at_rest(wanted):
    '''The census once these run: when a launch has ended, its template forks this and that.'''
    end = time.monotonic() + 10
    while names() != wanted and time.monotonic() < end:
        time.sleep(0.005)
    return census()

def start(n):
    assert list(xmp.spawn(fn, nprocs=n, runtime="cpu", start_method=sys.argv[1])) == list(range(n))

if __name__ == "__main__":
    __import__("multiprocessing.resource_tracker").resource_tracker.ensure_running()
    before = census()
    ours = ["xmp-script", "xmp-spare", "xmp-template"] if sys.argv[1] == "forkserver" else []
    start(2)
    first = at_rest(sorted(before[2] + ours))
    for n in (4, 2, 3, 2, 4, 3, 2, 4, 2):
        start(n)
    tenth = at_rest(first[2])
    xmp.shutdown()
    print(json.dumps([before, first, tenth, census()]))
"""


def test_ten_launches_leave_no_more_than_one(method: str, script: Script) -> None:
    before, first, tenth, after = script(TEN, method, timeout=40).json()
    assert tenth == first
    assert after == before
    if method != "forkserver":
        assert first == before


def test_a_replica_has_no_descriptors_of_ours_or_of_the_launcher(method: str) -> None:
    """Another process that reads an inherited pipe would not see its end."""
    reader, writer = os.pipe()

    def fn(rank: int) -> dict[str, str]:
        found = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                found[name] = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
        return found

    pipe = os.readlink(f"/proc/self/fd/{reader}")
    for got in launch(method, fn):
        if method != "fork":
            assert pipe not in got.values()
        low = {name for name in got if 2 < int(name) < 64}
        if method != "fork":
            assert len(low) <= 8, got
    os.close(reader)
    os.close(writer)


def test_a_wakeup_descriptor_of_the_launcher_stays(method: str) -> None:
    """asyncio has one while its loop runs."""
    import asyncio

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: None)
        got = list(await loop.run_in_executor(None, lambda: launch(method, lambda rank: rank)))
        got += list(launch(method, lambda rank: rank))
        child = await asyncio.create_subprocess_exec("true")
        assert await child.wait() == 0
        loop.remove_signal_handler(signal.SIGUSR1)
        return got

    assert asyncio.run(main()) == [0, 1, 0, 1]
