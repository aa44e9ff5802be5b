"""A launch in which a replica has skipped the test: a skip, unless another one has failed."""

from __future__ import annotations

from collections.abc import Sequence

from xmp._os.skips import is_skip
from xmp._processes.messages.order import Failure
from xmp._processes.report.replica_error import exception_of
from xmp._rules.watch import CAUSE, UNKNOWN

__all__ = ["real_first", "skip_of"]


def real_first(failures: Sequence[Failure]) -> list[Failure]:
    """Put a replica that has failed first, as the cause, if the first one has skipped.

    Replicas that have lost the skipped one, or that xmp has ended because of it, have not failed.
    """
    if not failures or not _skipped(failures[0]):
        return list(failures)
    real = [each for each in failures if each.label == UNKNOWN and not _skipped(each)]
    if not real:
        return list(failures)
    failures[0].label, real[0].label = UNKNOWN, CAUSE
    return [real[0], *(each for each in failures if each is not real[0])]


def skip_of(failures: Sequence[Failure]) -> BaseException | None:
    """Return the skip that the launch has come to; None where its cause is a failure."""
    return failures[0].exception if failures and _skipped(failures[0]) else None


def _skipped(failure: Failure) -> bool:
    return is_skip(exception_of(failure))
