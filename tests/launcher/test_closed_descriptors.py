"""A program that closes descriptors which it does not know, and opens files at their numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.stage import Stage
from xmp._processes.messages.connection import Closed, pair
from xmp._processes.messages.hosts import Ping
from xmp._processes.system.descriptors import Held


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def test_a_descriptor_is_closed_once_and_only_where_it_is_xmps(tmp_path: Path) -> None:
    held = Held(opened(tmp_path / "ours"))
    number = held.number
    assert held.is_ours
    os.close(number)
    assert not held.is_ours
    assert opened(tmp_path / "theirs") == number
    assert not held.is_ours
    held.close()
    os.fstat(number)
    again = Held(number)
    again.close()
    again.close()
    assert not again.is_ours
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_connection_whose_number_is_another_file_is_closed(tmp_path: Path) -> None:
    ours, theirs = pair()
    theirs.close()
    number = ours.hold().fileno()
    os.close(number)
    assert opened(tmp_path / "theirs") == number
    assert ours.readable()
    with pytest.raises(Closed, match="has closed its end"):
        ours.send(Ping())
    with pytest.raises(Closed, match="has closed its end"):
        ours.recv()
    ours.close()
    assert os.fstat(number).st_size == 0
    os.close(number)


PROGRAM = """
import os, sys
import in_script, xmp

def fn(rank):
    return rank

HOSTS = {"hosts": 2, "engine": "local", "nprocs": 1, "runtime": "cpu", "grace": 1}
ONE = {"nprocs": 2, "runtime": "cpu", "grace": 1}

if __name__ == "__main__":
    options = {"hosts": HOSTS, "one": ONE}[sys.argv[1]]
    said = [list(xmp.launch(fn, **options))]
    os.closerange(3, 200)
    files = [os.open(f"file-{i}", os.O_RDWR | os.O_CREAT) for i in range(int(sys.argv[2]))]
    said.append(list(xmp.launch(fn, **options)))
    context = xmp.launch(fn, join=False, **options)
    context.join()
    said.append(list(context.results()))
    xmp.shutdown()
    in_script.say(said=said, written=[os.fstat(file).st_size for file in files])
"""


@pytest.mark.hosts
@pytest.mark.parametrize("files", [0, 20])
@pytest.mark.parametrize("kind", ["one", "hosts"])
def test_the_next_launch_starts_what_it_needs_again(kind: str, files: int, stage: Stage) -> None:
    outcome = stage.run(PROGRAM, kind, str(files))
    assert outcome.said == {"said": [[0, 1]] * 3, "written": [0] * files}
    assert outcome.err == ""


RUNNING = """
import os
import in_script, xmp

def fn(rank):
    in_script.never_returns()

if __name__ == "__main__":
    context = xmp.spawn(fn, nprocs=2, runtime="cpu", join=False, grace=1)
    os.closerange(3, 200)
    try:
        context.join()
    except xmp.XmpError as error:
        in_script.say(kind=type(error).__name__, text=str(error))
    in_script.say(again=list(xmp.spawn(abs, nprocs=2, runtime="cpu")))
"""


def test_a_launch_that_runs_ends_with_an_error_of_xmps(stage: Stage) -> None:
    said = stage.run(RUNNING).said
    assert said["kind"] in ("StartError", "ReplicaDied"), said
    assert said["again"] == [0, 1]
