"""The exit status that a shell gets for a script on every device: a table, no process."""

from __future__ import annotations

import signal

import pytest

import xmp
from xmp._calls.run_script import status_of
from xmp._commands import run
from xmp._processes import exit_status
from xmp._processes.messages.order import Failure


def failed(
    kind: str = "exit", code: int | None = None, name: str | None = None
) -> xmp.ReplicaError:
    error = xmp.ReplicaDied("rank 1 of 2 has failed")
    error.exit_code, error.signal_name = code, name
    failure = Failure(1, 1, 7, kind, exit_code=code, signal_name=name)
    error.failures = (failure,)  # type: ignore[assignment]
    return error


STATUSES = [
    (failed("raised", 1), 1),
    (failed("raised"), 1),
    (failed(code=3), 3),
    (failed(code=255), 255),
    (failed(code=0), 1),
    (failed("signal", name="SIGKILL"), 128 + 9),
    (failed("signal", name="SIGABRT"), 128 + 6),
    (failed("signal", name="SIGUSR1"), 128 + 10),
    (failed("signal", name="SIGRTMIN+3"), 128 + signal.SIGRTMIN + 3),
    (failed("signal", name="SIGRTMAX-1"), 128 + signal.SIGRTMAX - 1),
    (failed("signal", name="SIG32"), 128 + 32),  # the C library's own
    (failed("interrupted", 1), 130),
    (failed("interrupted", name="SIGINT"), 130),
    (failed("signal", name="SIGINT"), 130),
]


@pytest.mark.parametrize(("error", "status"), STATUSES)
def test_the_status_is_that_of_the_cause(error: xmp.ReplicaError, status: int) -> None:
    assert status_of(error) == run._status_of(error) == status


def test_a_time_limit_has_the_status_of_timeout() -> None:
    assert run._status_of(xmp.ReplicaTimeout("timeout=2: not done")) == 124


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (None, 0), (0, 0), (False, 0), (3, 3), (255, 255), ("no data", 1), (256, 255), (-1, 255),
        (2**70, 255), (-(2**70), 255), (2**32, 255),
    ],
)  # fmt: skip
def test_sys_exit_in_one_replica_and_in_this_process(code: object, status: int) -> None:
    assert exit_status(SystemExit(code)) == run._status(SystemExit(code)) == status


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (ValueError("x"), 1)])
def test_an_exception_in_this_process(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run._status(error) == status
    assert type(error).__name__ in capsys.readouterr().err
