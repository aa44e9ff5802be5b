"""``xmp.gang``: calls of replicas that stay."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy
import pytest

import xmp
from tests.support.waiting import until


@pytest.fixture
def gang() -> Iterator[xmp.Gang]:
    with xmp.gang(3, runtime="cpu", setup=remembers, args=("told",)) as gang:
        yield gang


def remembers(rank: int, word: str) -> None:
    xmp.state().heard = [word]


def pid(rank: int) -> int:
    return os.getpid()


def hears(rank: int, word: str) -> list[str]:
    xmp.state().heard.append(word)
    heard: list[str] = xmp.state().heard
    return heard


def waits_for(rank: int, path: Path) -> str:
    until(path.exists)
    return path.read_text()


# --- calls ---------------------------------------------------------------------------------------


@pytest.mark.each_method
def test_replicas_and_what_they_hold_stay(method: str) -> None:
    with xmp.gang(2, runtime="cpu", start_method=method, setup=remembers, args=("first",)) as gang:
        pids = gang.run(pid)
        assert pids == gang.pids()
        assert gang.run(hears, ("second",)) == [["first", "second"]] * 2
        assert gang.run(hears, kwargs={"word": "third"}) == [["first", "second", "third"]] * 2
        assert gang.run(pid) == pids
        assert (gang.alive, gang.generation) == (True, 1)
    assert not gang.alive
    assert not any(os.path.exists(f"/proc/{each}") for each in pids)


def test_each_call_is_packed_again(gang: xmp.Gang) -> None:
    number = 1
    assert gang.run(lambda rank: number + rank) == [1, 2, 3]
    number = 10
    assert gang.run(lambda rank: number + rank) == [10, 11, 12]


def test_arrays_of_an_earlier_call_stay_as_they_were(gang: xmp.Gang) -> None:
    def keeps(rank: int, array: Any) -> float:
        xmp.state().array = array
        array[0] = rank
        return float(array.sum())

    assert gang.run(keeps, (numpy.ones(1 << 18),)) == [(1 << 18) - 1 + rank for rank in range(3)]
    gang.run(lambda rank, array: None, (numpy.zeros(1 << 18),))
    assert gang.run(lambda rank: float(xmp.state().array.sum())) == [
        (1 << 18) - 1 + rank for rank in range(3)
    ]


def test_what_is_written_stands_before_run_returns(capfd: pytest.CaptureFixture[str]) -> None:
    def says(rank: int, number: int) -> None:
        print(f"call {number}")
        print(f"error {number}", file=sys.stderr)

    with xmp.gang(3, runtime="cpu") as gang:
        for number in range(5):
            gang.run(says, (number,))
            seen = capfd.readouterr()
            assert (seen.out, seen.err) == (f"call {number}\n" * 3, f"error {number}\n" * 3)


def test_submitted_calls_run_in_their_order(gang: xmp.Gang, tmp_path: Path) -> None:
    path = tmp_path / "text"
    first = gang.submit(waits_for, (path,))
    second = gang.submit(pid)
    assert not first.done()
    path.write_text("there")
    assert gang.run(lambda rank: rank) == [0, 1, 2]  # it waits for them
    assert first.result() == ["there"] * 3
    assert second.result() == gang.pids()


def test_a_gang_that_closes_cancels_what_has_not_begun(tmp_path: Path) -> None:
    gang = xmp.gang(2, runtime="cpu")
    first, second = gang.submit(waits_for, (tmp_path / "never",)), gang.submit(pid)
    until(lambda: "waits_for" in gang.stacks().get(0, ""))
    gang.close()
    with pytest.raises(CancelledError):
        second.result()
    assert isinstance(first.exception(), xmp.ReplicaError)


def test_a_restart_starts_others_with_setup(gang: xmp.Gang) -> None:
    before, generation = gang.pids(), gang.generation
    gang.run(hears, ("lost",))
    gang.restart()
    assert not set(before) & set(gang.pids())
    assert gang.run(hears, ("new",)) == [["told", "new"]] * 3
    assert gang.generation == generation + 1


def test_a_thread_may_call(gang: xmp.Gang) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(gang.run(pid)))
    thread.start()
    thread.join()
    assert found == [gang.pids()]


def test_stacks_and_text(gang: xmp.Gang, tmp_path: Path) -> None:
    future = gang.submit(waits_for, (tmp_path / "go",))
    until(lambda: all("waits_for" in text for text in gang.stacks().values()))
    assert sorted(gang.stacks()) == [0, 1, 2]
    (tmp_path / "go").write_text("")
    future.result()
    assert repr(gang) == "<Gang of 3 replicas, runtime cpu: alive>"
    assert gang.plan.world_size == 3


# --- what is refused -----------------------------------------------------------------------------


def of_another_process(gang: xmp.Gang) -> None:
    heard, said = os.pipe()
    if os.fork() == 0:
        try:
            gang.run(pid)
        except RuntimeError as error:
            os.write(said, str(error).encode())
        finally:
            os._exit(0)
    os.close(said)
    os.wait()
    with open(heard) as file:
        raise RuntimeError(file.read())


def while_another_thread_calls(gang: xmp.Gang) -> None:
    with tempfile.TemporaryDirectory() as folder:
        go = Path(folder) / "go"
        thread = threading.Thread(target=lambda: gang.run(waits_for, (go,)))
        thread.start()
        until(lambda: "waits_for" in gang.stacks().get(0, ""))
        try:
            gang.run(pid)
        finally:
            go.touch()
            thread.join()


@pytest.mark.parametrize(
    ("refused", "kind", "words"),
    [
        (lambda gang: gang.run(3), TypeError, "fn must be callable, not int"),
        (lambda gang: gang.run(hears), TypeError, "missing a required argument: 'word'"),
        (lambda gang: gang.run(pid, 3), TypeError, "args must be a tuple or a list"),
        (lambda gang: gang.run(pid, timeout=-1), xmp.PlanError, "timeout=-1"),
        (lambda gang: gang.run(hears, (threading.Lock(),)), TypeError, "args[0] (lock) cannot be"),
        (lambda gang: gang.submit(pid, 3), TypeError, "args must be a tuple or a list"),
        (lambda gang: gang.run(pid, hosts=2), TypeError, "unexpected keyword argument 'hosts'"),
        (lambda gang: pickle.dumps(gang), TypeError, "a Gang cannot be pickled"),
        (of_another_process, RuntimeError, "this gang belongs to process"),
        (while_another_thread_calls, RuntimeError, "runs a call of another thread"),
    ],
)
def test_bad_input_is_refused_and_the_gang_lives(
    gang: xmp.Gang, refused: Callable[[xmp.Gang], object], kind: type[Exception], words: str
) -> None:
    generation = gang.generation
    with pytest.raises(kind) as caught:
        refused(gang)
    assert words in str(caught.value)
    assert gang.run(lambda rank: rank) == [0, 1, 2]
    assert gang.generation == generation


def test_a_gang_may_not_be_called_from_its_own_events() -> None:
    said: list[str] = []

    def calls_again(event: xmp.Event) -> None:
        if event.name == "returned" and not said:
            try:
                gang.run(pid)
            except RuntimeError as error:
                said.append(str(error))

    said.append("not yet")
    with xmp.gang(2, runtime="cpu", events=calls_again) as gang:
        said.clear()
        gang.run(pid)
        assert "runs a call of this thread" in said[0]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"max_restarts": 2}, TypeError, "unexpected keyword argument 'max_restarts'"),
        ({"nprocs": "x"}, TypeError, "nprocs must be a whole number"),
        ({"setup": 5}, TypeError, "fn must be callable"),
        ({"setup": hears}, TypeError, "missing a required argument: 'word'"),
        ({"runtime": "no"}, xmp.PlanError, "runtime='no'"),
    ],
)
def test_a_gang_that_cannot_be(options: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=None) as caught:
        xmp.gang(**{"nprocs": 2, "runtime": "cpu", **options})
    assert words in str(caught.value)


def test_after_close_nothing_runs() -> None:
    gang = xmp.gang(1, runtime="cpu")
    gang.close()
    gang.close()
    for refused in (gang.restart, lambda: gang.run(pid), lambda: gang.submit(pid)):
        with pytest.raises(RuntimeError, match="the gang is closed: make another one"):
            refused()
    assert repr(gang) == "<Gang of 1 replicas, runtime cpu: closed>"
