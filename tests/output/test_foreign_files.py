"""What lies where xmp is to write: a FIFO, a hard link, another user's file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import launch, nothing_started
from tests.support.waiting import until

VICTIM = "the only copy\n"


def speaks(rank: int) -> int:
    print("from", rank)
    return rank


def as_fifo(place: Path) -> None:
    os.mkfifo(place)


def as_hard_link(place: Path) -> None:
    victim = place.parent / "victim"
    victim.write_text(VICTIM)
    place.hardlink_to(victim)


def as_symbolic_link(place: Path) -> None:
    victim = place.parent / "victim"
    victim.write_text(VICTIM)
    place.symlink_to(victim)


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (as_fifo, "is no regular file"),
        (as_hard_link, "a hard link"),
        (as_symbolic_link, "symbolic links"),
    ],
)
def test_a_log_file_is_a_regular_file_of_its_own(
    put: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    launch("forkserver", speaks, log_dir=tmp_path, show="none")
    (file, *_) = [path for path in tmp_path.iterdir() if "from 1" in path.read_text()]
    file.unlink()
    put(file)
    with nothing_started(), pytest.raises(xmp.PlanError, match=words) as caught:
        launch("forkserver", speaks, log_dir=tmp_path, show="none")
    assert str(file) in str(caught.value)
    if put is not as_fifo:
        assert (tmp_path / "victim").read_text() == VICTIM


@pytest.mark.root
def test_a_log_file_of_another_user_is_refused(tmp_path: Path) -> None:
    launch("forkserver", speaks, log_dir=tmp_path, show="none")
    file = next(tmp_path.iterdir())
    os.chown(file, 12345, -1)
    with nothing_started(), pytest.raises(xmp.PlanError, match="belongs to user 12345"):
        launch("forkserver", speaks, log_dir=tmp_path, show="none")
    os.chown(tmp_path, 12345, -1)  # the folder's owner may replace its files anyway
    launch("forkserver", speaks, log_dir=tmp_path, show="none")


def test_events_on_a_fifo_without_a_reader_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "fifo"
    os.mkfifo(place)
    with nothing_started(), pytest.raises(xmp.PlanError, match="a FIFO that no program reads"):
        launch("forkserver", speaks, events=place)


def test_events_on_a_fifo_with_a_reader_arrive(tmp_path: Path) -> None:
    place, lines = tmp_path / "fifo", list[dict[str, Any]]()
    os.mkfifo(place)
    # Open for both, so that it ends when it has the last event.
    reader = os.open(place, os.O_RDWR)
    launch("forkserver", speaks, events=place)
    while not lines or lines[-1]["name"] != "finished":
        lines += map(json.loads, os.read(reader, 1 << 20).splitlines())
    os.close(reader)
    assert [line["name"] for line in lines].count("returned") == 2


def test_a_reader_that_does_not_read_holds_no_launch_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "fifo"
    os.mkfifo(place)
    reader = os.open(place, os.O_RDWR | os.O_NONBLOCK)
    filled = 0
    while filled < 65536 - 100:  # the capacity of a pipe (pipe(7)), but for less than one event
        filled += os.write(reader, b"-" * min(4096, 65536 - 100 - filled))
    launch("forkserver", speaks, events=place)
    assert capsys.readouterr().err.count("its reader does not read, and events are lost") == 1
    os.read(reader, filled)
    received = bytearray()
    launched = threading.Thread(
        target=launch, args=("forkserver", speaks), kwargs={"events": place}
    )
    launched.start()
    until(lambda: not launched.is_alive(), 20)
    received += os.read(reader, 1 << 20)
    os.close(reader)
    assert [json.loads(line)["name"] for line in received.splitlines()][-1] == "finished"
