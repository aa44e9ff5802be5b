"""How a replica ends, and what its launcher reports."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import failure, launch, never_returns, nothing_started
from tests.support.waiting import until


def raises(rank: int, error: BaseException) -> int:
    if rank == 1:
        raise error
    return rank


class Awkward(Exception):
    """Its arguments are not those of its ``__init__``, so it does not unpickle by itself."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("held by a lock")
        self.lock = threading.Lock()


# --- it raises ---------------------------------------------------------------------------------


def test_the_users_exception_leads_and_torchs_text_follows(method: str) -> None:
    error = failure(method, raises, ValueError("no such label: 17"))
    text = str(error)
    assert isinstance(error, xmp.ReplicaRaised)
    assert "ValueError: no such label: 17" in text.strip().splitlines()[0], text
    assert "Process 1 terminated with the following error:" in text
    assert "in raises" in text, "the user's traceback"
    assert "raise error" in text, "with its source lines"
    assert type(error.__cause__) is ValueError
    assert error.__cause__.args == ("no such label: 17",)


def test_what_the_error_knows(method: str) -> None:
    error = failure(method, raises, ValueError("x"), nprocs=3)
    assert (error.rank, error.local_rank, error.error_index) == (1, 1, 1)
    assert error.pid == error.error_pid > 0
    assert error.pid != os.getpid()
    assert error.signal_name is None
    assert len(error.failures) >= 1
    assert error.failures[0].rank == 1
    assert set(error.results) <= {0, 2}
    assert all(rank == value for rank, value in error.results.items())
    assert isinstance(error.host, str)


def gone(path: Path) -> bool:
    """Whether the process that has written its number into this file has ended."""
    number = path.read_text() if path.exists() else ""
    return bool(number) and not os.path.exists(f"/proc/{number}")


def finishes_first(rank: int, path: str) -> str:
    if rank != 0:
        until(lambda: gone(Path(path)))
        raise ValueError("late")
    threading.Timer(0, lambda: Path(path).write_text(str(os.getpid()))).start()
    return "done"


def test_results_of_those_that_finished(method: str, tmp_path: Path) -> None:
    error = failure(method, finishes_first, str(tmp_path / "ended"))
    assert dict(error.results) == {0: "done"}


def raises_awkward(rank: int) -> None:
    raise Awkward(7, reason=f"rank {rank}")


def test_an_exception_with_an_awkward_init(method: str) -> None:
    error = failure(method, raises_awkward)
    assert "Awkward: rank " in str(error)
    assert "(7)" in str(error)
    if error.__cause__ is not None and isinstance(error.__cause__, Awkward):
        assert error.__cause__.code == 7


def raises_unpicklable(rank: int) -> None:
    if rank == 1:
        raise Unpicklable


def test_an_exception_that_does_not_pickle(method: str) -> None:
    error = failure(method, raises_unpicklable)
    assert "Unpicklable: held by a lock" in str(error)
    assert error.rank == 1


class BadStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def raises_bad_str(rank: int) -> None:
    raise BadStr


def test_an_exception_that_cannot_be_shown(method: str) -> None:
    assert "BadStr" in str(failure(method, raises_bad_str))


def chained(rank: int) -> None:
    try:
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("outer") from error


def test_a_chain_of_exceptions_is_reported_whole(method: str) -> None:
    error = failure(method, chained)
    assert "KeyError: 'missing'" in str(error)
    assert "RuntimeError: outer" in str(error)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
def test_notes_of_an_exception_are_reported(method: str) -> None:
    def fn(rank: int) -> None:
        error = ValueError("plain")
        error.add_note("seen in batch 12")
        raise error

    error = failure(method, fn)
    assert "seen in batch 12" in str(error)
    assert getattr(error.__cause__, "__notes__", []) == ["seen in batch 12"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
def test_a_group_of_exceptions(method: str) -> None:
    def fn(rank: int) -> None:
        raise ExceptionGroup("many", [ValueError("a"), TypeError("b")])  # noqa: F821

    error = failure(method, fn)
    assert "ValueError: a" in str(error)
    assert "TypeError: b" in str(error)


def deep(rank: int) -> None:
    deep(rank)


def test_a_recursion_without_end(method: str) -> None:
    assert "RecursionError" in str(failure(method, deep))


def all_raise(rank: int) -> None:
    raise ValueError(f"rank {rank} of all")


def test_when_all_raise_one_is_the_cause_and_all_are_listed(method: str) -> None:
    error = failure(method, all_raise, nprocs=3)
    assert f"rank {error.rank} of all" in str(error).strip().splitlines()[0]
    assert error.failures[0].rank == error.rank


def interrupts(rank: int, by_signal: bool) -> None:
    if rank == 1:
        if by_signal:
            os.kill(os.getpid(), signal.SIGINT)
            never_returns()
        raise KeyboardInterrupt


@pytest.mark.parametrize("by_signal", [False, True])
def test_an_interrupted_replica_is_a_failure(method: str, by_signal: bool) -> None:
    error = failure(method, interrupts, by_signal)
    assert error.rank == 1
    assert "KeyboardInterrupt" in str(error) or error.signal_name == "SIGINT"


def test_all_replicas_interrupted_are_a_failure(method: str) -> None:
    def fn(rank: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        never_returns()

    context = launch(method, fn, nprocs=3, join=False)
    with pytest.raises(xmp.ReplicaDied, match="was interrupted"):
        context.join()


# --- it exits ----------------------------------------------------------------------------------


def exits(rank: int, code: Any) -> int:
    if rank == 1:
        sys.exit(code)
    return rank


@pytest.mark.parametrize("code", [0, None])
def test_sys_exit_0_is_success(method: str, code: Any) -> None:
    assert list(launch(method, exits, code)) == [0, None]


@pytest.mark.parametrize("code", [2**70, -(2**70)])
def test_sys_exit_with_a_number_that_no_c_long_holds(method: str, code: int) -> None:
    assert failure(method, exits, code).exit_code == 255


def test_sys_exit_with_a_number(method: str) -> None:
    error = failure(method, exits, 123)
    assert isinstance(error, xmp.ReplicaDied)
    assert "process 1 terminated with exit code 123" in str(error)
    assert (error.rank, error.exit_code, error.signal_name) == (1, 123, None)


@pytest.mark.parametrize("raises", [False, True])
def test_a_replica_that_reported_its_end_was_not_killed(method: str, raises: bool) -> None:
    """It still had a thread to wait for when it was ended."""

    def fn(rank: int) -> None:
        if rank == 1:
            threading.Thread(target=never_returns).start()
            if raises:
                raise ValueError("x")
            sys.exit(123)

    error = failure(method, fn)
    assert (error.rank, error.signal_name) == (1, None)
    assert error.exit_code == (1 if raises else 123)
    assert "SIG" not in str(error)


def test_sys_exit_with_a_text(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    error = failure(method, exits, "the label file is missing")
    assert error.exit_code == 1
    assert "process 1 terminated with exit code 1" in str(error)
    assert "the label file is missing" in str(error) + capfd.readouterr().err


def dies(rank: int, how: str) -> int:
    if rank == 1:
        if how == "_exit":
            os._exit(7)
        elif how == "_exit0":
            os._exit(0)
        elif how == "abort":
            os.abort()
        elif how == "segv":
            ctypes.string_at(0)
        else:
            os.kill(os.getpid(), getattr(signal, how))
            never_returns()
    return rank


@pytest.mark.parametrize(
    ("how", "name"),
    [("abort", "SIGABRT"), ("SIGKILL", "SIGKILL"), ("segv", "SIGSEGV"), ("SIGTERM", "SIGTERM")],
)
def test_death_by_a_signal(method: str, how: str, name: str) -> None:
    error = failure(method, dies, how)
    assert isinstance(error, xmp.ReplicaDied)
    assert f"process 1 terminated with signal {name}" in str(error)
    assert (error.rank, error.signal_name) == (1, name)
    assert error.error_pid > 0


def test_death_by_a_real_time_signal(method: str) -> None:
    error = failure(method, dies, "SIGRTMAX")
    assert error.rank == 1
    assert "process 1 terminated with signal" in str(error)


def test_os_exit(method: str) -> None:
    error = failure(method, dies, "_exit")
    assert "process 1 terminated with exit code 7" in str(error)
    assert error.exit_code == 7


def test_os_exit_0_without_a_result_does_not_hang(method: str) -> None:
    """torch counts an exit status of 0 as success, and so do existing programs."""
    try:
        results = launch(method, dies, "_exit0")
    except xmp.ReplicaDied as error:
        assert error.rank == 1  # noqa: PT017
    else:
        assert list(results) == [0, None]


def test_the_last_words_on_standard_error_are_in_the_report(
    method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def fn(rank: int) -> None:
        if rank == 1:
            os.write(2, b"native: out of tiles\n")
            os.abort()
        never_returns()

    error = failure(method, fn)
    assert "native: out of tiles" in str(error)
    assert "native: out of tiles" in capfd.readouterr().err


# --- what it returns ---------------------------------------------------------------------------


LARGE = pytest.param((2 << 30) + 1, marks=pytest.mark.slow)


@pytest.mark.parametrize("size", [200_000, LARGE])
def test_results_of_a_size_that_fills_a_pipe(method: str, size: int) -> None:
    """Also more than one system call writes, 2 GiB."""

    def fn(rank: int) -> bytes:
        return bytes(size) if rank == 0 else b""

    first, second = launch(method, fn)
    assert (len(first), second) == (size, b"")


@pytest.mark.slow
def test_three_hundred_megabytes(method: str) -> None:
    def fn(rank: int) -> bytes:
        return bytes([rank + 1]) * (300 << 20 if rank == 0 else 1 << 20)

    first, second = launch(method, fn)
    assert len(first) == 300 << 20
    assert first[-1] == 1
    assert len(second) == 1 << 20


def test_a_result_that_does_not_pickle(method: str) -> None:
    def fn(rank: int) -> Any:
        return threading.Lock() if rank == 1 else rank

    error = failure(method, fn)
    assert error.rank == 1
    assert "pickle" in str(error)


class Poison:
    def __reduce__(self) -> Any:
        return int, ("not a number",)


def test_a_result_that_pickles_but_does_not_unpickle(method: str) -> None:
    with pytest.raises(xmp.XmpError, match=r"rank 1's result.*not a number"):
        launch(method, lambda rank: Poison() if rank == 1 else rank)


# --- what it is given --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((1, threading.Lock()), {}, r"args\[1\]"),
        ((), {"lock": threading.Lock()}, r"kwargs\['lock'\]"),
        (([{"deep": threading.Lock()}],), {}, r"args\[0\]"),
    ],
)
@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_an_argument_that_does_not_pickle(start: str, args: Any, kwargs: Any, name: str) -> None:
    with nothing_started(), pytest.raises(TypeError, match=name):
        launch(start, lambda rank, *a, **k: rank, *args, kwargs=kwargs)


class Refuses:
    """Pickles, and raises where it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise ImportError('no module named cudnn')",)


@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_an_argument_that_does_not_unpickle(start: str) -> None:
    with pytest.raises(xmp.XmpError) as caught:
        launch(start, lambda rank, each: rank, Refuses())
    assert "no module named cudnn" in str(caught.value)
