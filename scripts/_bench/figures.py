"""Samples of many rounds, and whether a target is reached by them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

Key = tuple[str, str, str]
"""(case, system, what was measured)"""


@dataclass
class Figures:
    """Every sample of every round, and what could not be measured, with the reason."""

    samples: dict[Key, list[float]] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, case: str, system: str, found: dict[str, float]) -> None:
        """Take one round in."""
        for name, value in found.items():
            self.samples.setdefault((case, system, name), []).append(value)

    def median(self, key: Key) -> float:
        return statistics.median(self.samples[key])

    def has(self, *keys: Key) -> bool:
        return all(self.samples.get(key) for key in keys)


@dataclass(frozen=True)
class Verdict:
    """How far a target is reached: ``ratio`` of the medians, and its quartiles over the rounds."""

    ratio: float
    low: float
    high: float
    reached: bool
    short: bool
    """It is missed by more than the spread."""

    @property
    def word(self) -> str:
        return "reached" if self.reached else "SHORT" if self.short else "within spread"


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    cuts = statistics.quantiles(values, n=4, method="inclusive")
    return cuts[0], cuts[2]


def judge(
    above: Sequence[float], below: Sequence[float], at_least: float | None, at_most: float | None
) -> Verdict:
    """Compare ``above`` / ``below`` with a target; both have one sample per round.

    A target is missed by more than the spread if it would be missed by the ratio moved towards it
    by the distance between the quartiles of the rounds' own ratios.
    """
    ratio = statistics.median(above) / statistics.median(below)
    low, high = quartiles([a / b for a, b in zip(above, below)])
    spread = high - low
    if at_least is not None:
        return Verdict(ratio, low, high, ratio >= at_least, ratio + spread < at_least)
    assert at_most is not None
    return Verdict(ratio, low, high, ratio <= at_most, ratio - spread > at_most)
