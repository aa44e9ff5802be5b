"""Values that are too long for a program's environment: a library may read them from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xmp._words.types import HostPlan, ReplicaPlan

__all__ = ["LONGEST", "in_files", "is_too_long", "still_too_long"]

LONGEST = 128 * 1024 - 1
"""The longest "NAME=value" that ``execve`` takes, in bytes: Linux's MAX_ARG_STRLEN less a NUL."""


def in_files(host: HostPlan, from_files: Mapping[str, str]) -> HostPlan:
    """Return the host's plan with values that are too long moved from variables to ``files``.

    ``from_files`` has the variables that can be read from a file, each with that of the path. Only
    a value that all replicas of the host share is moved.
    """
    shared = set(host.replicas[0].set).intersection(*(each.set for each in host.replicas))
    long = {name: text for name, text in shared if name in from_files and is_too_long(name, text)}
    if not long:
        return host
    files = tuple(sorted((from_files[name], text) for name, text in long.items()))
    return replace(host, replicas=tuple(_without(r, long) for r in host.replicas), files=files)


def _without(replica: ReplicaPlan, names: Mapping[str, str]) -> ReplicaPlan:
    """Return the replica without these variables, and without inherited ones of these names."""
    kept = tuple((name, text) for name, text in replica.set if name not in names)
    return replace(replica, set=kept, unset=tuple(sorted({*replica.unset, *names})))


def still_too_long(hosts: Sequence[HostPlan]) -> tuple[str, ...]:
    """Return one note for each variable that keeps a replica from starting programs."""
    pairs = {pair for host in hosts for replica in host.replicas for pair in replica.set}
    names = sorted({name for name, text in pairs if is_too_long(name, text)})
    return tuple(
        f"{name} is longer than 128 KiB: replicas cannot start programs (Linux's execve refuses "
        'it), and start_method="spawn" cannot start replicas'
        for name in names
    )


def is_too_long(name: str, text: str) -> bool:
    """Return whether no program can be started with this variable."""
    return len(f"{name}={text}".encode(errors="surrogateescape")) > LONGEST
