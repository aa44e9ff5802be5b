"""Endings that could pass for others: what a replica did is said, nothing is lost in silence."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from typing import Any

import pytest

import xmp
from tests.support.launching import failure, launch, never_returns
from tests.support.stage import Outcome, Script, Stage
from xmp._processes.replica.reports import exit_status

pytestmark = pytest.mark.failing


# --- sys.exit ------------------------------------------------------------------------------------


def exits(rank: int, code: Any) -> None:
    if rank == 1:
        sys.exit(code)


def test_the_message_of_an_exit_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    own, first = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", first)
    for stream in (own, None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert exit_status(SystemExit("no data")) == 1
    assert own.getvalue() == first.getvalue() == "no data\n"


# Which code becomes which status: commands/test_statuses.py.
@pytest.mark.parametrize(("code", "status"), [(3, 3), (-(2**70), 255)])
def test_sys_exit_with_a_number_is_a_failure_that_names_it(code: int, status: int) -> None:
    error = failure("forkserver", exits, code)
    first = str(error).partition("\n")[0]
    assert f"called sys.exit({code})" in first
    assert error.exit_code == status
    assert "in exits" in str(error), "where it was called"


@pytest.mark.parametrize("code", [None, 0, False])
def test_sys_exit_with_success_is_an_end_without_a_result(code: object) -> None:
    assert list(launch("forkserver", exits, code)) == [None, None]


def test_sys_exit_with_a_text(capfd: pytest.CaptureFixture[str]) -> None:
    error = failure("forkserver", exits, "no data in /data")
    assert "called sys.exit('no data in /data')" in str(error).partition("\n")[0]
    assert error.exit_code == 1
    assert "no data in /data\n" in capfd.readouterr().err


class NoText:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def exits_without_text(rank: int) -> None:
    raise SystemExit(NoText())


def test_sys_exit_with_what_has_no_text(method: str) -> None:
    error = failure(method, exits_without_text)
    assert "called sys.exit(" in str(error).partition("\n")[0]
    assert "NoText" in str(error).partition("\n")[0]
    assert error.exit_code == 1
    assert "xmp/_processes" not in str(error)


# --- without a result ----------------------------------------------------------------------------


def leaves(rank: int) -> str:
    if rank == 1:
        os._exit(0)
    return "done"


def test_an_end_without_a_result_is_said(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert list(launch(method, leaves)) == ["done", None]
    said = capfd.readouterr().err
    assert "rank 1 ended with exit code 0 before its function had returned" in said
    assert "rank 0" not in said


# --- flushing ------------------------------------------------------------------------------------


class Refuses:
    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        raise RuntimeError("the sink is gone")


def prints_into_nothing(rank: int) -> str:
    sys.stdout = Refuses()  # type: ignore[assignment]
    return "done"


def test_a_stream_that_cannot_be_flushed_costs_no_result(
    method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert list(launch(method, prints_into_nothing)) == ["done", "done"]
    assert "RuntimeError: the sink is gone" in capfd.readouterr().err


FULL = """
import sys
import xmp

def fn(rank):
    sys.stdout = open("/dev/full", "w")
    print("lost")
    return "done"

if __name__ == "__main__":
    print(*xmp.spawn(fn, nprocs=2, runtime="cpu"))
"""


def test_output_that_is_lost_is_said(script: Script) -> None:
    done = script(FULL)
    assert done.out.split() == ["done", "done"]
    assert "No space left on device" in done.err


# --- results that do harm ------------------------------------------------------------------------


class Ends:
    def __reduce__(self) -> Any:
        return sys.exit, (7,)


def spin() -> None:
    while True:
        pass


def gives(rank: int, kind: type) -> Any:
    return kind() if rank == 1 else "done"


def test_a_result_that_exits_where_it_is_loaded() -> None:
    with pytest.raises(xmp.XmpError, match=r"rank 1's result .*SystemExit: 7"):
        launch("forkserver", gives, Ends)


HANGING = """
import sys, time
import xmp

def spin():
    while True:
        pass

class Hangs:
    def __reduce__(self):
        return (time.sleep, (600,)) if sys.argv[1] == "asleep" else (spin, ())

def fn(rank, hangs):
    return Hangs() if rank == 1 and hangs else "done"

if __name__ == "__main__":
    xmp.spawn(fn, (False,), nprocs=2, runtime="cpu")
    for limit in 1, 2, 4, 8, 16:  # where the machine is busy, the result comes later
        try:
            xmp.spawn(fn, (True,), nprocs=2, runtime="cpu", timeout=limit)
        except xmp.ReplicaTimeout as error:
            said = str(error)
            if "is still being loaded" in said:
                break
    print(f"limit={limit}", said)
"""


@pytest.fixture(scope="module")
def hanging(shared_stage: Stage) -> dict[str, Outcome]:
    """Both wait for their limit at the same time."""
    started = {how: shared_stage.start(HANGING, how) for how in ("asleep", "busy")}
    return {how: shared_stage.outcome(each, 60) for how, each in started.items()}


@pytest.mark.parametrize("how", ["asleep", "busy"])
def test_a_result_that_hangs_where_it_is_loaded_is_under_the_timeout(
    how: str, hanging: dict[str, Outcome]
) -> None:
    done = hanging[how]
    assert done.code == 0, done.err
    words = r"limit=(\d+) timeout=\1: \1 s after the call rank 1's result is still being loaded"
    assert re.match(words, done.out), done
    assert how == "asleep" or "in spin" in done.out
    assert done.seconds < 45  # and not 600


# --- what it did to itself -----------------------------------------------------------------------


def closes_everything(rank: int, first: int) -> None:
    if rank == 1:
        os.closerange(first, 65536)
        return
    never_returns()


@pytest.mark.parametrize("first", [0, 3])
def test_a_replica_that_closes_xmps_descriptors(method: str, first: int) -> None:
    text = str(failure(method, closes_everything, first))
    assert text.startswith("rank 1 ")
    assert "closed its connection to xmp" in text.partition("\n")[0]
    assert "os.closerange" in text
    assert "xmp/_processes" not in text


def kills_itself(rank: int, number: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), number)
    never_returns()


def test_a_replica_that_kills_itself_is_not_killed_from_outside(method: str) -> None:
    text = str(failure(method, kills_itself, signal.SIGKILL))
    assert "from outside" not in text
    assert "itself" in text


def burns(rank: int, soft: int, hard: int) -> None:
    import resource

    if rank == 1:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
        spin()
    never_returns()


@pytest.mark.parametrize(("limits", "name"), [((1, 9), "SIGXCPU"), ((1, 1), "SIGKILL")])
def test_the_limit_of_cpu_time_is_named(limits: tuple[int, int], name: str) -> None:
    error = failure("forkserver", burns, *limits)
    first = str(error).partition("\n")[0]
    assert error.signal_name == name
    assert "CPU time" in first
    assert "ulimit -t" in str(error)
    assert "from outside" not in str(error)


# --- terminate() ---------------------------------------------------------------------------------


def waits(rank: int) -> None:
    never_returns()


def test_what_terminate_ended_was_not_killed_by_a_stranger(method: str) -> None:
    context = launch(method, waits, join=False)
    context.terminate()
    with pytest.raises(xmp.ReplicaDied) as caught:
        context.join()
    first = str(caught.value).partition("\n")[0]
    assert "terminate()" in first
    assert caught.value.signal_name == "SIGTERM"


# --- when ----------------------------------------------------------------------------------------


def crashes(rank: int) -> None:
    if rank == 1:
        os.abort()
    raise ConnectionError("Connection closed by peer")


def test_no_victim_failed_before_the_cause() -> None:
    for _ in range(3):
        error = failure("forkserver", crashes, nprocs=4)
        assert error.rank == 1
        assert all(each.at >= error.failures[0].at for each in error.failures)
        assert ", -" not in str(error)
