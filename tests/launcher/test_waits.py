"""Ranks wait for one that does not come: what is said unasked, and when it counts as a hang."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import xmp
from tests.support.launching import never_returns
from tests.support.stage import Stage
from tests.support.waiting import until

pytestmark = [pytest.mark.failing, pytest.mark.framework]

PROGRAM = """
    import os, signal, sys
    import in_script, xmp
    from waiting import until

    def load(rank):
        open(f"in-fn-{rank}", "w").close()
        until(lambda: os.path.exists("go"), 60)

    def fn(rank):
        if rank == 1:
            load(rank)
        else:
            open(f"in-fn-{rank}", "w").close()
        xmp.barrier()
        return rank

    def note(event):
        if event.name == "waiting":
            open("noticed", "a").write(event.message + "\\n")

    if __name__ == "__main__":
        print(list(xmp.spawn(fn, nprocs=3, runtime="cpu", events=note)))
"""


def test_it_is_said_unasked_and_the_launch_goes_on(stage: Stage) -> None:
    process = stage.start(PROGRAM, env={"XMP_HANG_NOTICE": "0.5"})
    noticed = stage.folder / "noticed"
    until(lambda: noticed.exists() and noticed.read_text().endswith("\n"), 60, "the notice")
    (stage.folder / "go").touch()
    outcome = stage.outcome(process)
    assert (outcome.code, outcome.out.strip()) == (0, "[0, 1, 2]"), outcome
    (first, *more) = noticed.read_text().splitlines()
    assert first.startswith("rank 1 has not come to the barrier at ")
    assert "where ranks 0, 2 wait" in first
    assert "it is in until() at waiting.py:" in first
    assert len(more) <= 1
    assert f"xmp: {first} (XMP_HANG_NOTICE=0 for no such lines)\n" in outcome.err


def test_zero_says_nothing(stage: Stage) -> None:
    process = stage.start(PROGRAM, env={"XMP_HANG_NOTICE": "0"})
    stage.in_function(process)
    (stage.folder / "go").touch()
    assert stage.outcome(process).err == ""


def test_a_limit_that_is_none_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XMP_HANG_NOTICE", "soon")
    with pytest.raises(xmp.PlanError, match="XMP_HANG_NOTICE is 'soon'; it must be a number of"):
        xmp.spawn(abs, nprocs=2, runtime="cpu")


def polls(rank: int) -> None:
    if rank == 1:
        while not os.path.lexists("/nonexistent/ready"):
            time.sleep(0.01)
    xmp.barrier()


def test_a_rank_that_polls_hangs() -> None:
    with pytest.raises(xmp.ReplicaTimeout) as caught:
        xmp.spawn(polls, nprocs=3, runtime="cpu", hang_timeout=2, grace=1)
    assert caught.value.suspects == (1,)
    assert caught.value.rank == 1
    assert str(caught.value).startswith("hang_timeout=2: rank 1 has not come to the barrier at ")


def evaluates(rank: int, seconds: float) -> int:
    """Rank 1 works for longer than the limit, in Python that never gives the interpreter away."""
    end = time.process_time() + seconds
    while rank == 1 and time.process_time() < end:
        sum(range(10_000_000))
    xmp.barrier()
    return rank


def test_a_rank_that_works_does_not() -> None:
    results = xmp.spawn(evaluates, (5.0,), nprocs=2, runtime="cpu", hang_timeout=2)
    assert list(results) == [0, 1]


def in_two_ways(rank: int, folder: str) -> None:
    if rank == 1:
        raise RuntimeError("an error that the others wait for")
    Path(folder, str(rank)).touch()
    never_returns()


def test_a_failure_has_no_suspects(tmp_path: Path) -> None:
    with pytest.raises(xmp.ReplicaRaised) as caught:
        xmp.spawn(in_two_ways, (str(tmp_path),), nprocs=2, runtime="cpu", grace=1)
    assert caught.value.suspects == ()
