"""What the tests of plans share."""

from __future__ import annotations

from xmp._words.types import JobPlan

__all__ = ["given"]


def given(made: JobPlan, local: int = 0) -> dict[str, str]:
    """The variables of one replica of the first host."""
    return dict(made.hosts[0].replicas[local].set)
