"""What torch tests of its own ``start_processes``, told again, for xmp and for torch itself.

The cases are those of torch 2.13's test/test_multiprocessing_spawn.py. torch itself runs them with
"fork" alone: its fresh interpreters take seconds, and its rules are the same for all methods.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmp
import xmp.compat.torch_mp
from tests.support.waiting import until

pytestmark = pytest.mark.failing

STARTERS = [
    ("xmp", "forkserver"),
    ("compat", "forkserver"),
    pytest.param(("compat", "fork"), marks=pytest.mark.methods),
    pytest.param(("torch", "fork"), marks=pytest.mark.peers),
]
"""What a method changes is tested in the launcher's room (test_contexts, test_first_failure). The
cases stay true of torch itself while it is the same torch."""
Start = Callable[..., Any]


def starter(name: str) -> Start:
    """``start_processes`` of xmp, of ``xmp.compat.torch_mp``, or of torch."""
    if name == "xmp":
        return xmp.start_processes
    if name == "compat":
        return xmp.compat.torch_mp.start_processes
    import torch.multiprocessing

    torchs: Start = torch.multiprocessing.start_processes
    return torchs


@pytest.fixture(params=STARTERS, ids="-".join)
def named(request: pytest.FixtureRequest) -> Any:
    """The starter's name and a start method."""
    return request.param


@pytest.fixture
def start(named: tuple[str, str]) -> Start:
    """``start(fn, args, nprocs, join)`` under each starter and start method."""
    name, method = named

    def call(fn: Any, *args: Any, nprocs: int = 2, join: bool = True) -> Any:
        return starter(name)(fn, args, nprocs=nprocs, join=join, start_method=method)

    return call


@pytest.fixture
def shared(named: tuple[str, str]) -> Any:
    """The multiprocessing context whose queues this start method takes."""
    return multiprocessing.get_context("fork" if named[1] == "fork" else "spawn")


def join_all(context: Any, **options: Any) -> None:
    while not context.join(**options):
        pass


# --- replicas that succeed ------------------------------------------------------------------------


def returns(index: int) -> None:
    pass


def test_a_join_of_all_returns_none(start: Start) -> None:
    assert start(returns) is None


def test_join_is_true_after_the_last_and_stays_so(start: Start) -> None:
    context = start(returns, join=False)
    context.join(timeout=None)
    context.join(timeout=None)
    assert context.join(timeout=None) is True
    assert context.join() is True
    assert context.sentinels == {}


def puts_its_index(index: int, queue: Any) -> None:
    queue.put(index)


def test_the_first_argument_is_the_index(start: Start, shared: Any) -> None:
    queue = shared.SimpleQueue()
    start(puts_its_index, queue)
    assert sorted([queue.get(), queue.get()]) == [0, 1]
    queue.close()


def returns_a_lock(index: int) -> Any:
    import threading

    return threading.Lock()


def test_what_the_function_returns_need_not_be_sendable(start: Start) -> None:
    assert start(returns_a_lock) is None


# --- replicas that fail ---------------------------------------------------------------------------


def one_raises(index: int, which: int) -> None:
    if index == which:
        raise ValueError(f"shard {index} is empty")
    until(lambda: False, 60)


def all_raise(index: int) -> None:
    raise ValueError(f"shard {index} is empty")


@pytest.mark.parametrize("which", [0, 1])
def test_the_text_ends_with_the_traceback_of_the_one_that_raised(start: Start, which: int) -> None:
    with pytest.raises(Exception, match=rf"\nValueError: shard {which} is empty$") as caught:
        start(one_raises, which)
    heading = f"-- Process {which} terminated with the following error:\nTraceback (most recent"
    assert heading in str(caught.value)
    assert caught.value.error_index == which  # type: ignore[attr-defined]


def test_the_text_ends_with_the_traceback_of_one_of_several(start: Start) -> None:
    with pytest.raises(Exception, match=r"\nValueError: shard (0|1) is empty$"):
        start(all_raise)


def first_aborts(index: int) -> None:
    if index == 0:
        os.kill(os.getpid(), signal.SIGABRT)
    until(lambda: False, 60)


def test_the_text_ends_with_the_signal(start: Start) -> None:
    with pytest.raises(Exception, match=r"process 0 terminated with signal SIGABRT$") as caught:
        start(first_aborts)
    assert caught.value.exit_code == -signal.SIGABRT  # type: ignore[attr-defined]
    assert caught.value.signal_name == "SIGABRT"  # type: ignore[attr-defined]


def first_exits(index: int) -> None:
    if index == 0:
        sys.exit(123)
    until(lambda: False, 60)


def test_the_others_get_sigterm_after_an_exit_code(start: Start) -> None:
    context = start(first_exits, join=False)
    with pytest.raises(Exception, match=r"process 0 terminated with exit code 123$") as caught:
        join_all(context)
    assert caught.value.exit_code == 123  # type: ignore[attr-defined]
    assert [process.exitcode for process in context.processes] == [123, -signal.SIGTERM]
    assert not any(process.is_alive() for process in context.processes)


def leaves_after(index: int, folder: Path) -> None:
    until((folder / "go").exists, 60)
    if index == 0:
        sys.exit(123)
    first = (folder / "first").read_text()
    until(lambda: not Path(f"/proc/{first}").exists(), 60)


def test_within_the_grace_period_the_others_end_by_themselves(start: Start, tmp_path: Path) -> None:
    context = start(leaves_after, tmp_path, join=False)
    (tmp_path / "first").write_text(str(context.processes[0].pid))
    assert context.join(timeout=0, grace_period=30) is False
    (tmp_path / "go").touch()
    with pytest.raises(Exception, match=r"process 0 terminated with exit code 123$"):
        join_all(context, grace_period=30)
    assert [process.exitcode for process in context.processes] == [123, 0]


def second_raises_when_first_is_gone(index: int, folder: Path) -> None:
    if index == 0:
        return
    until((folder / "gone").exists, 60)
    raise ValueError("shard 1 is empty")


def test_a_failure_after_a_success(start: Start, tmp_path: Path) -> None:
    context = start(second_raises_when_first_is_gone, tmp_path, join=False)
    context.processes[0].join(30)
    assert context.processes[0].exitcode == 0
    (tmp_path / "gone").touch()
    with pytest.raises(Exception, match=r"\nValueError: shard 1 is empty$"):
        join_all(context)


# --- launches within launches ---------------------------------------------------------------------


def waits(index: int, folder: Path) -> None:
    (folder / f"inner-{os.getpid()}").touch()  # at once, unlike a text
    until(lambda: False, 60)


def launches_and_dies(index: int, folder: Path, name: str, method: str) -> None:
    starter(name)(waits, (folder,), nprocs=2, join=False, start_method=method)
    until(lambda: len(list(folder.glob("inner-*"))) == 2, 30)
    os.kill(os.getpid(), signal.SIGTERM)


def test_replicas_of_a_replica_end_with_it(
    start: Start, named: tuple[str, str], tmp_path: Path
) -> None:
    context = start(launches_and_dies, tmp_path, *named, nprocs=1, join=False)
    with pytest.raises(Exception, match=r"process 0 terminated with signal SIGTERM$"):
        join_all(context)
    pids = [path.name.partition("-")[2] for path in tmp_path.glob("inner-*")]
    assert len(pids) == 2
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)


# --- spawn and the exceptions ---------------------------------------------------------------------


def exits_with_12(index: int) -> None:
    sys.exit(12)


def test_spawn_raises_torchs_exceptions_for_one_process() -> None:
    import torch.multiprocessing as torchs
    from torch.multiprocessing.spawn import ProcessException

    import xmp.compat.torch_mp as mp

    for module in (mp, torchs):
        with pytest.raises(module.ProcessRaisedException, match=r"\nValueError: shard 0 is empty$"):
            mp.spawn(all_raise, nprocs=1)
        with pytest.raises(module.ProcessExitedException) as caught:
            mp.spawn(exits_with_12, nprocs=1)
        assert caught.value.exit_code == 12
        context = mp.spawn(one_raises, (1,), nprocs=1, join=False)
        for pid in context.pids():
            os.kill(pid, signal.SIGTERM)
        with pytest.raises(module.ProcessExitedException) as caught:
            context.join()
        assert isinstance(caught.value, mp.ProcessException)
        assert isinstance(caught.value, ProcessException)
        assert caught.value.error_pid == context.processes[0].pid


def test_errors_can_be_made_and_pickled() -> None:
    import xmp.compat.torch_mp as mp

    died = mp.ProcessExitedException("no such label", 1, 1234, -9, "SIGKILL")
    for made in (mp.ProcessRaisedException("no such label", 1, 1234), died):
        again = pickle.loads(pickle.dumps(made))
        assert isinstance(again, type(made))
        for error in (made, again):
            assert (str(error), error.msg) == ("no such label", "no such label")
            assert (error.error_index, error.error_pid) == (1, 1234)
    again = pickle.loads(pickle.dumps(died))
    assert (again.exit_code, again.signal_name) == (-9, "SIGKILL")
