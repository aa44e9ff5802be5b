"""What the lines of a host begin with in the driver's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xmp._types import Output

__all__ = ["BY_HOST", "names_apart", "of_host", "over_hosts"]

BY_HOST = "[{host}:{rank}] "
"""The prefix over several hosts, where ``prefix=`` does not say another."""


def over_hosts(output: Output | None, count: int) -> Output | None:
    """The output of a launch over so many hosts; None where nothing is to be done about it."""
    if output is None:
        return None
    prefix = BY_HOST if output.by_host and count > 1 else output.prefix
    output = replace(output, prefix=prefix, by_host=False)
    return None if output == Output() else output


def of_host(output: Output | None, names: Sequence[str], index: int) -> Output | None:
    """The same for one of these hosts."""
    return output and replace(output, host=names_apart(names)[index])


def names_apart(names: Sequence[str]) -> list[str]:
    """The names of hosts; those that several hosts have, with the index of each: "node#1"."""
    return [
        f"{name}#{index}" if names.count(name) > 1 else name for index, name in enumerate(names)
    ]
