"""Which failures end the restarts, and which only wait: rules on plain values."""

from __future__ import annotations

import builtins
from dataclasses import replace

import pytest

from xmp._processes.launcher.restart_rules import fault_of, passes, rest
from xmp._processes.messages.order import Failure

SECOND = 10**9
BEGAN = 7 * SECOND
TRACE = """Traceback (most recent call last):
  File "/home/me/train.py", line {line}, in train
    raise ValueError("no such label")
  File "/home/me/data.py", line 3, in read
    raise ValueError("no such label")
ValueError: no such label
"""


def raised(name: str, message: str = "no such label", line: int = 12, after: float = 1) -> Failure:
    at = BEGAN + int(after * SECOND)
    trace = TRACE.format(line=line)
    return Failure(0, 0, 1, "raised", at=at, error_type=name, message=message, traceback=trace)


def died(signal: str | None = None, code: int | None = None, kind: str = "signal") -> Failure:
    return Failure(0, 0, 1, kind, at=BEGAN + SECOND, signal_name=signal, exit_code=code)


FIRST = raised("ValueError")


@pytest.mark.parametrize(
    ("second", "same"),
    [
        (FIRST, True),
        (raised("ValueError", after=59), True),
        (raised("ValueError", after=61), False),  # it has worked for a while
        (raised("KeyError"), False),
        (raised("ValueError", "another label"), False),
        (replace(FIRST, traceback=FIRST.traceback.replace("line 3", "line 4")), False),
        (replace(FIRST, traceback=FIRST.traceback.replace("data.py", "other.py")), False),
        (raised("ValueError", line=99), True),  # the line is that of the raise
        (replace(FIRST, rank=5, pid=9), True),
        (replace(FIRST, traceback=""), False),
    ],
)
def test_two_attempts_are_compared_by_exception_and_line(second: Failure, same: bool) -> None:
    first = fault_of(FIRST, BEGAN, returned=False)
    assert first is not None
    assert (fault_of(second, BEGAN, returned=False) == first) is same


def test_addresses_are_no_difference() -> None:
    one, two = (raised("ValueError", f"bad <object at 0x7f{n}>") for n in ("01ab", "02cd"))
    assert fault_of(one, BEGAN, False) == fault_of(two, BEGAN, False) is not None


def test_a_result_is_progress() -> None:
    assert fault_of(FIRST, BEGAN, returned=True) is None


PASSING = (
    *(raised(name) for name in ("OSError", "TimeoutError", "ConnectionResetError", "MemoryError")),
    raised("socket.gaierror", "[Errno -3] Temporary failure in name resolution"),
    raised("torch.distributed.DistNetworkError"),
    raised("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB"),
    raised("RuntimeError", "CUDA error: out of memory"),
    raised("jax.errors.JaxRuntimeError", "UNAVAILABLE: failed to connect to all addresses"),
    raised("jaxlib._jax.XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"),
    replace(raised("data.Missing"), exception=FileNotFoundError(2, "gone")),
    died("SIGKILL", -9),
    died("SIGSEGV", -11),
)
NOT = (
    *(raised(name) for name in ("ValueError", "RuntimeError", "KeyError", "ZeroDivisionError")),
    raised("ValueError", "the service is UNAVAILABLE"),
    died(code=3, kind="exit"),
    died(kind="interrupted"),
)


@pytest.mark.parametrize("failure", PASSING, ids=lambda f: f.error_type or f.signal_name)
def test_what_may_pass_is_never_the_same_and_waits_longer_each_time(failure: Failure) -> None:
    assert passes(failure)
    assert fault_of(failure, BEGAN, returned=False) is None
    assert [rest(failure, restarts) for restarts in range(4)] == [1, 2, 4, 8]
    assert rest(failure, 2000) == 60


@pytest.mark.parametrize("failure", NOT, ids=lambda f: f.error_type or f.kind)
def test_everything_else_is_tried_again_at_once(failure: Failure) -> None:
    assert not passes(failure)
    assert rest(failure, 3) == 0


def test_every_kind_of_oserror_is_known_by_its_name() -> None:
    """Of exceptions that cannot be sent only the name arrives."""
    known = [each for each in vars(builtins).values() if isinstance(each, type)]
    assert {each.__name__ for each in known if issubclass(each, (OSError, MemoryError))} <= {
        each.__name__ for each in known if passes(raised(each.__name__))
    }
