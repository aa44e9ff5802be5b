"""Which failures end the restarts, which only wait, and until when: rules on plain values."""

from __future__ import annotations

import builtins
from dataclasses import replace
from types import SimpleNamespace

import pytest

import xmp
from xmp._processes.messages.order import Failure
from xmp._rules.limits import HANG, START, TOTAL, Overdue
from xmp._rules.restarts import (
    CANNOT_HELP,
    FailedAttempt,
    RestartRules,
    fault_of,
    may_mend,
    passes,
    rest,
)

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


# --- whether another attempt may mend it at all ------------------------------------------------


def ended(*failures: Failure, overdue: str = "", orphaned: bool = False) -> SimpleNamespace:
    over = Overdue(overdue, SECOND, (0,)) if overdue else None
    return SimpleNamespace(overdue=over, failures=failures, orphaned=orphaned)


TIMEOUT, START_ERROR = xmp.ReplicaTimeout("too long"), xmp.StartError("no supervisor")
RAISED, DIED = xmp.ReplicaRaised("raised"), xmp.ReplicaDied("died")
MENDS = [
    (TIMEOUT, ended(overdue=TOTAL), False),
    (TIMEOUT, ended(overdue=START), True),
    (TIMEOUT, ended(overdue=HANG), True),
    (TIMEOUT, ended(), False),  # the launcher's own clock: the whole time, or no replica exists
    (RAISED, ended(FIRST), True),
    (RAISED, ended(FIRST, replace(FIRST, final=True)), True),  # the cause counts
    (RAISED, ended(replace(FIRST, final=True)), False),  # what cannot be sent
    (DIED, ended(died("SIGKILL", -9)), True),
    (DIED, ended(died("SIGTERM", -15)), True),
    (DIED, ended(died("SIGINT", -2)), False),
    (DIED, ended(died(code=3, kind="exit")), True),
    (DIED, ended(died(kind="interrupted")), False),
    (START_ERROR, ended(orphaned=True), True),  # the supervisor is lost
    (START_ERROR, ended(), False),
]


@pytest.mark.parametrize(("error", "known", "mends"), MENDS)
def test_which_ends_another_attempt_may_mend(
    error: xmp.XmpError, known: SimpleNamespace, mends: bool
) -> None:
    assert may_mend(error=error, known=known) is mends


def test_failures_that_are_not_taken_in_yet_stand_for_the_others() -> None:
    assert may_mend(ended(), RAISED, [FIRST])
    assert not may_mend(ended(), RAISED, [replace(FIRST, final=True)])


# --- from one attempt to the next --------------------------------------------------------------

LATER = raised("ConnectionRefusedError", "not there yet")
LATE = "not restarted: timeout=10 is over before that"
USER = "the program or its user has ended the launch"


def attempt(cause: Failure | None = FIRST, **more: bool | int) -> FailedAttempt:
    return FailedAttempt(BEGAN, cause=cause, **more)  # type: ignore[arg-type]


def rules(most: int = 3, seconds: int | None = None, *past: FailedAttempt) -> RestartRules:
    """Those of a call at ``BEGAN``, after the attempts in ``past``."""
    made = RestartRules(most, seconds and seconds * SECOND, BEGAN)
    for each in past:
        made.restarted(each)
    return made


OTHER = attempt(raised("KeyError"))
REFUSALS = [
    # the rules, the attempt that has failed, seconds since the call, why there is no other
    (rules(3), attempt(), 1, ""),
    (rules(0), attempt(), 1, "max_restarts=0 are made"),
    (rules(2, None, OTHER), attempt(), 1, ""),
    (rules(2, None, OTHER, OTHER), attempt(), 1, "max_restarts=2 are made"),
    (rules(3), attempt(ended_by_user=True), 1, USER),
    (rules(0), attempt(ended_by_user=True), 1, USER),
    (rules(3), attempt(mends=False), 1, "the next attempt would fail in the same way"),
    # Errors that are about no replica: a lost supervisor, a start that took too long.
    (rules(3, None, attempt(None)), attempt(None), 1, ""),
    # The same fault twice, in the attempt before and not in one before that.
    (rules(3, None, attempt()), attempt(), 1, CANNOT_HELP),
    (rules(3, None, attempt(), OTHER), attempt(), 1, ""),
    (rules(3, None, attempt(LATER)), attempt(LATER), 1, ""),
    (rules(3, None, attempt()), attempt(returned=True), 1, ""),
    (rules(3, None, attempt()), attempt(alone=False), 1, ""),
    # `timeout` counts for all attempts; the time of a pause does not count.
    (rules(3, 10), attempt(), 9, ""),
    (rules(3, 10), attempt(), 10, "timeout= is over"),
    (rules(3, 10), attempt(paused_for=5 * SECOND), 14, ""),
    (rules(3, 10), attempt(paused_for=5 * SECOND), 15, "timeout= is over"),
    (rules(3, 10, attempt(LATER, paused_for=5 * SECOND)), attempt(), 14, ""),
    (rules(3, 10, attempt(LATER, paused_for=5 * SECOND)), attempt(), 15, "timeout= is over"),
    # What may pass waits, unless the time is over before that. Of several hosts one knows.
    (rules(3, 10), attempt(LATER), 8, ""),
    (rules(3, 10), attempt(LATER), 9, f"{LATE}, in 1 s"),
    (rules(3, 10, OTHER), attempt(LATER), 7, ""),
    (rules(3, 10, OTHER), attempt(LATER), 8, f"{LATE}, in 2 s"),
    (rules(3, 10), attempt(LATER, alone=False), 9, ""),
]  # fmt: skip


@pytest.mark.parametrize(("known", "failed", "seconds", "why"), REFUSALS)
def test_why_no_attempt_follows(
    known: RestartRules, failed: FailedAttempt, seconds: int, why: str
) -> None:
    assert known.refusal(failed, BEGAN + seconds * SECOND) == why
    # Only what the user could not know beforehand is added to the error.
    assert known.hopeless == (why if why.startswith(("restarting", "not")) else "")


def test_an_attempt_begins_after_its_pause_whatever_time_is_left_then() -> None:
    known, failed = rules(3, 10), attempt(LATER)
    at = BEGAN + 8 * SECOND
    assert known.refusal(failed, at) == ""
    known.settle(failed, at)
    assert known.begins == at + SECOND
    assert known.refusal(failed, known.begins) == ""  # asked again when the pause is over
    known.restarted(failed)
    assert known.begins is None
    assert known.pause(failed) == 2


def test_the_next_attempt_counts_from_the_call() -> None:
    known = rules(3, 10, attempt(paused_for=5 * SECOND), attempt(LATER, paused_for=SECOND))
    assert (known.made, known.first) == (2, BEGAN + 6 * SECOND)
