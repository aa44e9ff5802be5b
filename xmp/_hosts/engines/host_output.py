"""What the lines of a host begin with in the driver's output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from xmp._words.types import Output

__all__ = ["BY_HOST", "names_apart", "over_hosts"]

BY_HOST = "[{host}:{rank}] "
"""The prefix over several hosts, where ``prefix=`` does not say another."""


def over_hosts(output: Output | None, count: int) -> Output | None:
    """Return the output of a launch over hosts; None if nothing is to be done about it."""
    if output is None:
        return None
    prefix = BY_HOST if output.by_host and count > 1 else output.prefix
    output = replace(output, prefix=prefix, by_host=False)
    return None if output == Output() else output


def names_apart(names: Sequence[str]) -> list[str]:
    """Return the names of hosts; those that several have, with the index of each: "node#1"."""
    counts = Counter(names)
    return [f"{name}#{index}" if counts[name] > 1 else name for index, name in enumerate(names)]
