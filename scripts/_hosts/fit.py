"""A straight line through figures: what a job costs anyhow, and what each host adds."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["line"]


def line(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return (a, b) of a + b * size, with the least sum of squares of relative errors.

    Relative: the largest job would otherwise be all that counts.
    """
    weights = [1 / max(value, 1e-9) ** 2 for value in values]
    total = sum(weights)
    x = sum(w * s for w, s in zip(weights, sizes)) / total
    y = sum(w * v for w, v in zip(weights, values)) / total
    spread = sum(w * (s - x) ** 2 for w, s in zip(weights, sizes))
    b = sum(w * (s - x) * (v - y) for w, s, v in zip(weights, sizes, values)) / spread
    return y - b * x, b
