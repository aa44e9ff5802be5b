"""The secret of a job on several hosts: its launchers know it, and nothing shows it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.in_script import signals
from tests.support.waiting import until
from xmp._os import ports
from xmp._words.types import PortNeed

pytestmark = pytest.mark.hosts

SECRET = "kept-apart-4711-kept-apart"
PROGRAM = """
import os, pathlib, time, xmp
HERE = pathlib.Path(__file__).parent

def fn(rank):
    (HERE / f"in-{rank}").write_text(repr(dict(os.environ)))
    while not (HERE / "go").exists():
        time.sleep(0.01)

if __name__ == "__main__":
    xmp.spawn(fn, nprocs=1, runtime="cpu", start_timeout=60)
"""


class Hosts:
    """The programs of the two hosts of a job, on this one."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.folder, self._stack = folder, stack
        (folder / "program.py").write_text(PROGRAM)
        with ports.lease([PortNeed("any", "listen", "127.0.0.1", 0, 0)]) as lease:
            self._port = str(lease.ports["any"] - 1000)

    def start(self, index: int, secret: str) -> subprocess.Popen[str]:
        placed = {"NNODES": "2", "NODE_RANK": str(index), "MASTER_ADDR": "127.0.0.2"}
        own = {"MASTER_PORT": self._port, "XMP_JOB_SECRET": secret, "XMP_LOG": "debug"}
        process = subprocess.Popen(
            [sys.executable, str(self.folder / "program.py")],
            env={**os.environ, **placed, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self._stack.enter_context(process)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(stack, tmp_path)


def test_it_is_in_no_replica_no_argument_and_no_output(hosts: Hosts) -> None:
    programs = [hosts.start(index, SECRET) for index in (0, 1)]
    entered = [hosts.folder / f"in-{rank}" for rank in (0, 1)]
    until(lambda: all(each.exists() and each.read_text() for each in entered), 40)
    arguments = _arguments()
    (hosts.folder / "go").touch()
    output = [program.communicate(timeout=30)[0] for program in programs]
    assert [program.returncode for program in programs] == [0, 0], output
    assert any(b"xmp" in each for each in arguments)
    assert not any(SECRET.encode() in each for each in arguments)
    for text in (*output, *(each.read_text() for each in entered)):
        assert SECRET not in text


def _arguments() -> list[bytes]:
    """The command lines of all processes, as ``ps`` shows them to everyone."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def test_an_error_about_it_does_not_show_it(hosts: Hosts) -> None:
    first, second = hosts.start(0, SECRET), hosts.start(1, f"{SECRET}-of-another")
    text = second.communicate(timeout=40)[0]
    assert second.returncode != 0
    assert "give all hosts the same XMP_JOB_SECRET" in text
    assert SECRET not in text
    until(lambda: signal.SIGQUIT in signals(first.pid, "SigCgt"))  # it says what it waits for
    first.send_signal(signal.SIGINT)
    text = first.communicate(timeout=40)[0]
    assert first.returncode == -signal.SIGINT
    assert "host 1 of 2 has not come" in text
    assert SECRET not in text
