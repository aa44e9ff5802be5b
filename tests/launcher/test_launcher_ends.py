"""A launcher ends: by its last line, by a signal, or without having joined what it started."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.launching import launch
from tests.support.stage import Script
from tests.support.waiting import until

ENDS = """
import os, signal, sys, time
import xmp

def fn(rank, path):
    while len(sys.argv) > 3:
        signal.pause()
    while not os.path.exists(sys.argv[2] + "-done"):  # until the main part is
        time.sleep(0.001)
    open(os.path.join(path, str(rank)), "w").close()

if __name__ == "__main__":
    xmp.spawn(fn, (sys.argv[2],), nprocs=2, runtime="cpu", start_method=sys.argv[1],
              join=False, daemon=len(sys.argv) > 3)
    open(sys.argv[2] + "-done", "w").close()
"""


def test_a_launcher_that_ends_waits_for_its_replicas(
    method: str, script: Script, tmp_path: Path
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    done = script(ENDS, method, str(folder))
    assert done.code == 0, done.err
    assert sorted(os.listdir(folder)) == ["0", "1"]


def test_daemons_end_with_their_launcher(method: str, script: Script, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    done = script(ENDS, method, str(folder), "daemon")
    assert done.code == 0, done.err
    assert os.listdir(folder) == []


KILLED = """
import os, signal, sys
import xmp

def fn(rank):
    os.write(1, b"in fn\\n")  # in one piece: both ranks write
    while True:
        signal.pause()

if __name__ == "__main__":
    xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1], join=sys.argv[2] == "join")
    while True:
        signal.pause()
"""


def living(process: psutil.Process) -> bool:
    """A zombie is not: what adopts orphans here need not reap them."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


@pytest.mark.parametrize("joins", ["join", "context"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_launcher_ended_by_a_signal_leaves_nothing(
    method: str, tmp_path: Path, number: signal.Signals, joins: str
) -> None:
    import subprocess

    path = tmp_path / "train.py"
    path.write_text(KILLED)
    launcher = subprocess.Popen(
        [sys.executable, str(path), method, joins],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    for _ in range(2):
        assert launcher.stdout.readline() == "in fn\n"
    family = psutil.Process(launcher.pid).children(recursive=True)
    assert len(family) >= 2
    launcher.send_signal(number)
    with launcher:
        try:
            launcher.wait(20)
        finally:
            launcher.kill()
    try:
        until(lambda: not any(map(living, family)), 10)
    finally:
        for process in filter(living, family):
            process.kill()
    assert launcher.returncode in (-number, 1, 128 + number, 130)


def test_a_context_without_a_reference(method: str) -> None:
    """Its replicas go on, the next launch is not disturbed, and puts away what has ended."""
    pids = launch(method, lambda rank: rank, join=False).pids()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert list(launch(method, lambda rank: rank)) == [0, 1]


def test_an_unjoined_failed_launch_is_reported_at_exit(method: str, script: Script) -> None:
    done = script(
        """
import sys
import xmp

def fn(rank):
    raise ValueError("not joined")

if __name__ == "__main__":
    xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1], join=False)
""",
        method,
    )
    assert "not joined" in done.err
