"""What ``print`` shows of contexts, timelines and results."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

import xmp
from xmp._processes import StartTimeline, Timeline


def ends_in_different_ways(rank: int, folder: Path) -> int:
    (folder / str(rank)).touch()
    if rank == 1:
        while len(list(folder.iterdir())) < 3:
            time.sleep(0.005)  # the others are in the function
        os._exit(3)
    while True:
        signal.pause()


def waits(rank: int, folder: Path) -> int:
    while not (folder / "go").exists():
        time.sleep(0.005)
    return rank


def test_a_context_shows_function_runtime_and_replicas(tmp_path: Path) -> None:
    context = xmp.spawn(waits, (tmp_path,), nprocs=2, runtime="cpu", join=False)
    first, second = context.pids()
    running = f"running: rank 0 (pid {first}), rank 1 (pid {second})"
    assert repr(context) == f"<ProcessContext of waits, 2 replicas, runtime cpu; {running}>"
    (tmp_path / "go").touch()
    context.join()
    ended = f"exit code 0: rank 0 (pid {first}), rank 1 (pid {second})"
    assert repr(context) == f"<ProcessContext of waits, 2 replicas, runtime cpu; {ended}>"


def test_a_context_groups_replicas_by_their_end(tmp_path: Path) -> None:
    context = xmp.spawn(
        ends_in_different_ways, (tmp_path,), nprocs=3, runtime="cpu", join=False, grace=0.5
    )
    pids = context.pids()
    with pytest.raises(xmp.ReplicaDied):
        context.join()
    text = repr(context)
    assert f"; killed by SIGTERM: rank 0 (pid {pids[0]}), rank 2 (pid {pids[2]})" in text
    assert f"; exit code 3: rank 1 (pid {pids[1]})" in text


def test_a_context_knows_the_ended_ranks_before_a_join(tmp_path: Path) -> None:
    context = xmp.start_processes(waits, (tmp_path,), 2, join=False)
    assert repr(context).startswith("<ProcessContext of waits, 2 replicas; running: ")
    (tmp_path / "go").touch()
    end = time.monotonic() + 10
    while "running" in repr(context) and time.monotonic() < end:
        time.sleep(0.005)
    assert "; ended: rank 0" in repr(context)
    assert context.join() is True


def test_many_replicas_are_not_all_listed(tmp_path: Path) -> None:
    with xmp.spawn(waits, (tmp_path,), nprocs=10, runtime="cpu", join=False, grace=0) as context:
        text = repr(context)
    assert text.count("pid") == 8
    assert text.endswith(" and 2 more>")


def test_results_are_shown_as_a_list() -> None:
    results = xmp.spawn(abs, nprocs=2, runtime="cpu")
    assert repr(results) == str(results) == "Results([0, 1])"


def test_a_start_is_shown_as_a_table() -> None:
    results = xmp.spawn(abs, nprocs=2, runtime="cpu")
    lines = str(results.timeline).splitlines()
    assert lines[0] == "seconds since the call"
    assert lines[1].split() == [
        *("rank", "received", "loaded", "forked", "born", "ready", "entered", "left")
    ]
    for rank, line in enumerate(lines[2:]):
        number, *seconds = line.split()
        assert int(number) == rank
        assert len(seconds) == 7
        assert [float(each) for each in seconds] == sorted(map(float, seconds))
    assert {len(line) for line in lines[1:]} == {len(lines[1])}
    pattern = r"Timeline\(received \d+\.\d{3} s, loaded .*, left \d+\.\d{3} s\)"
    assert re.fullmatch(pattern, repr(results.timeline[0]))


def test_a_stage_that_was_not_reached_is_a_dash() -> None:
    timeline = Timeline(called=1, received=2_000_001, forked=5_000_001)
    assert repr(timeline) == "Timeline(received 0.002 s, forked 0.005 s)"
    (line,) = str(StartTimeline({3: timeline})).splitlines()[2:]
    assert line.split() == ["3", "0.002", "-", "0.005", "-", "-", "-", "-"]
    many = str(StartTimeline(dict.fromkeys(range(20), timeline)))
    assert many.count("\n") == 18
    assert many.endswith("\nand 4 more ranks")
