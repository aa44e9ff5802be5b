"""A call that fails: the replicas are kept if all come back, and replaced if not."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import never_returns
from tests.support.waiting import until

pytestmark = pytest.mark.failing
KEPT = "The gang keeps its replicas, with their state: the next call finds both."
LOST = "The gang has lost its replicas, with their state: the next call starts new ones, and runs setup first."  # noqa: E501


@pytest.fixture
def gang() -> Iterator[xmp.Gang]:
    with xmp.gang(3, runtime="cpu", setup=counts) as gang:
        yield gang


def counts(rank: int) -> None:
    xmp.state().calls = 0


def called(rank: int) -> int:
    xmp.state().calls += 1
    return int(xmp.state().calls)


def raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("no")


def raises_beside_sleepers(rank: int) -> None:
    raises(rank)
    never_returns()


def raises_everywhere(rank: int) -> None:
    raise NameError("nothing")


def sleeps(rank: int) -> None:
    never_returns()


def exits(rank: int) -> None:
    if rank == 1:
        sys.exit(0)


def cannot_return(rank: int) -> Any:
    return threading.Lock()


class Stubborn:
    """Its handler of SIGINT does nothing."""

    def __call__(self, rank: int) -> None:
        raises(rank)
        signal.signal(signal.SIGINT, lambda *_: None)
        never_returns()


def dies(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    never_returns()


def leaves(rank: int) -> None:
    if rank == 1:
        os._exit(0)


@pytest.mark.parametrize(
    ("fn", "options", "rank", "words", "kept"),
    [
        (raises, {}, 1, "raised ValueError: no", True),
        (raises_beside_sleepers, {}, 1, "raised ValueError: no", True),
        (raises_everywhere, {}, None, "raised NameError: nothing", True),
        (sleeps, {"timeout": 0.5}, 0, "timeout=0.5: not done 0.5 s after the call", True),
        (exits, {}, 1, "called sys.exit(0)", True),
        (cannot_return, {}, None, "cannot be sent back", True),
        (Stubborn(), {}, 1, "raised ValueError: no", False),
        (dies, {}, 1, "was killed by SIGKILL", False),
        (leaves, {}, 1, "ended with exit code 0", False),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_kept_or_lost(
    gang: xmp.Gang, fn: Callable[[int], Any], options: Any, rank: int | None, words: str, kept: bool
) -> None:
    calls, generation = gang.run(called)[0], gang.generation
    with pytest.raises(xmp.ReplicaError) as caught:
        gang.run(fn, **options)
    assert words in str(caught.value)
    assert rank in (None, caught.value.rank)
    assert str(caught.value).splitlines()[-1] == (KEPT if kept else LOST)
    assert gang.run(called) == [calls + 1 if kept else 1] * 3
    assert gang.generation == generation + (not kept)


def test_a_death_between_calls_is_seen_and_told_once(gang: xmp.Gang) -> None:
    gang.run(called)
    os.kill(gang.pids()[1], signal.SIGKILL)
    until(lambda: not gang.alive)
    with pytest.raises(xmp.ReplicaDied, match="was killed by SIGKILL") as caught:
        gang.run(called)
    assert LOST in str(caught.value)
    assert gang.run(called) == [1] * 3


def test_a_death_is_told_also_after_a_failure_that_was_told(gang: xmp.Gang) -> None:
    with pytest.raises(xmp.ReplicaRaised):
        gang.run(raises)
    os.kill(gang.pids()[1], signal.SIGKILL)
    until(lambda: not gang.alive and gang._launch.finished)
    with pytest.raises(xmp.ReplicaDied, match="was killed by SIGKILL"):
        gang.run(called)


def test_a_loss_that_was_told_is_not_told_again_by_the_end(gang: xmp.Gang) -> None:
    with pytest.raises(xmp.ReplicaDied):
        gang.run(dies)
    gang.restart()
    assert gang.run(called) == [1] * 3
    with pytest.raises(xmp.ReplicaDied):
        gang.run(dies)
    gang.close()


def test_a_setup_that_fails_is_the_failure_of_the_gang() -> None:
    with pytest.raises(xmp.ReplicaRaised, match="ValueError: no"):
        xmp.gang(2, runtime="cpu", setup=raises)
    with pytest.raises(xmp.ReplicaTimeout, match=r"timeout=0\.2"):
        xmp.gang(2, runtime="cpu", setup=sleeps, timeout=0.2)


def test_the_limits_of_the_gang_are_those_of_its_calls() -> None:
    with xmp.gang(2, runtime="cpu", timeout=0.5) as gang:
        with pytest.raises(xmp.ReplicaTimeout, match=r"timeout=0\.5"):
            gang.run(sleeps)
        gang.run(lambda rank: time.sleep(0.6), timeout=60)
        with pytest.raises(xmp.ReplicaTimeout, match=r"hang_timeout=0\.3"):
            gang.run(sleeps, timeout=60, hang_timeout=0.3)


# --- Ctrl-C --------------------------------------------------------------------------------------


def steps(rank: int, folder: Path) -> int:
    count = 0
    while not xmp.preempted():
        count += 1
        (folder / str(rank)).touch()
        time.sleep(0.001)
    xmp.state().steps = count
    return count


def sleeps_there(rank: int, folder: Path) -> None:
    (folder / str(rank)).touch()
    never_returns()


def interrupted(wait: Callable[[], object], folder: Path) -> None:
    """Call this; Ctrl-C comes when three ranks are in their function."""

    def interrupt() -> None:
        until(lambda: len(os.listdir(folder)) == 3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    wait()


def test_ctrl_c_ends_a_call_that_asks_preempted_at_one_step(gang: xmp.Gang, tmp_path: Path) -> None:
    generation = gang.generation
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(KeyboardInterrupt):
            interrupted(lambda folder=folder: gang.run(steps, (folder,)), folder)  # type: ignore[misc]
        done = gang.run(lambda rank: xmp.state().steps)
        assert len(set(done)) == 1
        assert done[0] > 0
    assert gang.generation == generation


def test_ctrl_c_interrupts_the_others_and_says_where_they_were(
    gang: xmp.Gang, tmp_path: Path
) -> None:
    generation = gang.generation
    with pytest.raises(KeyboardInterrupt, match="the replicas were interrupted here"):
        interrupted(lambda: gang.run(sleeps_there, (tmp_path,)), tmp_path)
    assert gang.run(lambda rank: rank) == [0, 1, 2]
    for each in tmp_path.iterdir():
        each.unlink()
    future = gang.submit(sleeps_there, (tmp_path,))
    with pytest.raises(KeyboardInterrupt):
        interrupted(future.result, tmp_path)
    assert isinstance(future.exception(), xmp.ReplicaError)
    assert gang.run(lambda rank: rank) == [0, 1, 2]
    assert gang.generation == generation
