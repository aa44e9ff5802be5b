"""A program that ends with a gang open: by its last line, within a call, or by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.stage import ROOT, Script
from tests.support.waiting import until

pytestmark = pytest.mark.failing

PROGRAM = """
import atexit, os, signal, sys, time
import xmp

def setup(rank, folder):
    atexit.register(lambda: open(os.path.join(folder, f"exit-{rank}"), "w").close())

def works(rank, folder):
    open(os.path.join(folder, f"works-{rank}"), "w").close()
    while True:
        signal.pause()

if __name__ == "__main__":
    how, folder = sys.argv[1:]
    gang = xmp.gang(2, runtime="cpu", setup=setup, args=(folder,), daemon=how == "daemon")
    print(*gang.pids(), flush=True)
    if how == "submitted":
        gang.submit(works, (folder,))
        while len(os.listdir(folder)) < 2:
            time.sleep(0.01)
    if how == "raises":
        raise ValueError("no")
    if how == "killed":
        gang.run(works, (folder,))
"""
EXITS = ["exit-0", "exit-1"]


@pytest.mark.parametrize("how", ["returns", "raises", "submitted"])
def test_replicas_run_their_exit_handlers(how: str, script: Script, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    done = script(PROGRAM, how, str(folder))
    assert (done.code, done.err.count("ValueError: no")) == (int(how == "raises"), how == "raises")
    assert sorted(each for each in os.listdir(folder) if "exit" in each) == EXITS
    assert not any(map(psutil.pid_exists, map(int, done.out.split())))


def test_a_daemon_is_ended_at_once(script: Script, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    done = script(PROGRAM, "daemon", str(folder))
    assert done.code == 0, done.err
    assert os.listdir(folder) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_killed_program(number: signal.Signals, tmp_path: Path) -> None:
    folder, file = tmp_path / "made", tmp_path / "script.py"
    folder.mkdir()
    file.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, file, "killed", folder],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    pids = [*map(int, process.stdout.readline().split())]
    until(lambda: len(os.listdir(folder)) == 2)
    process.send_signal(number)
    assert process.wait() == -number
    process.stdout.close()
    until(lambda: not any(map(psutil.pid_exists, pids)))
