"""Which host of the cluster has failed, where Ray says of several calls that one has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["failed_host", "first_line"]

_ADVICE = "See `ray status` for the hosts that live, and launch again"


def failed_host(ray: Any, asked: Sequence[Any], names: Sequence[str]) -> str:
    """The first host without an answer, why, and what to do.

    ``asked``: references of Ray, one for each host, in the order of ``names``.
    """
    for name, reference in zip(names, asked):
        try:
            ray.get(reference, timeout=0)
        except ray.exceptions.GetTimeoutError:
            return f"host {name} of the Ray cluster does not answer. {_ADVICE}"
        except ray.exceptions.RayError as error:
            return f"host {name} of the Ray cluster has failed: {first_line(error)}. {_ADVICE}"
    return f"a host of the Ray cluster has failed. {_ADVICE}"


def first_line(error: BaseException) -> str:
    """What Ray says in one line: of an exception in an actor, that exception."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return f"{type(cause).__name__}: {first_line(cause)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
