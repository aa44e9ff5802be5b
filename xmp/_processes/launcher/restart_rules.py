"""Which failures another attempt may mend (``max_restarts``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xmp._errors import ReplicaError, ReplicaTimeout
from xmp._limits import TOTAL

if TYPE_CHECKING:
    from xmp._processes.messages.order import Failure

    from .outcome import Outcome

__all__ = ["may_mend"]


def may_mend(outcome: Outcome, error: BaseException, failures: Sequence[Failure] = ()) -> bool:
    """Whether another attempt may succeed, and the user has not asked for this end.

    ``failures``, the cause first, stand for those of an outcome that is not known yet.
    """
    if isinstance(error, ReplicaTimeout):
        return outcome.overdue is not None and outcome.overdue.name != TOTAL
    if isinstance(error, ReplicaError):
        cause = (failures or outcome.failures)[0]
        return not (cause.final or cause.kind == "interrupted" or cause.signal_name == "SIGINT")
    return outcome.orphaned
