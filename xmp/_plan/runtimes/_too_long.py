"""Values that no program's environment can hold: a library may read them from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xmp._words.types import HostPlan, ReplicaPlan

__all__ = ["LONGEST", "in_files", "is_too_long", "still_too_long"]

LONGEST = 128 * 1024 - 1
"""Bytes of "NAME=value" that ``execve`` takes: with its NUL, Linux's MAX_ARG_STRLEN."""


def in_files(host: HostPlan, from_files: Mapping[str, str]) -> HostPlan:
    """Move what is too long, and equal in all replicas, from their variables to ``files``.

    ``from_files`` has the variables that can be read from a file, each with the one for the path.
    """
    shared = set(host.replicas[0].set).intersection(*(each.set for each in host.replicas))
    long = {name: text for name, text in shared if name in from_files and is_too_long(name, text)}
    if not long:
        return host
    files = tuple(sorted((from_files[name], text) for name, text in long.items()))
    return replace(host, replicas=tuple(_without(r, long) for r in host.replicas), files=files)


def _without(replica: ReplicaPlan, names: Mapping[str, str]) -> ReplicaPlan:
    """The replica without these variables, inherited ones of the same name too."""
    kept = tuple((name, text) for name, text in replica.set if name not in names)
    return replace(replica, set=kept, unset=tuple(sorted({*replica.unset, *names})))


def still_too_long(hosts: Sequence[HostPlan]) -> tuple[str, ...]:
    """One note for each variable with which a replica cannot start a program."""
    pairs = {pair for host in hosts for replica in host.replicas for pair in replica.set}
    names = sorted({name for name, text in pairs if is_too_long(name, text)})
    return tuple(
        f"{name} is longer than 128 KiB: replicas cannot start programs (Linux's execve refuses "
        'it), and start_method="spawn" cannot start replicas'
        for name in names
    )


def is_too_long(name: str, text: str) -> bool:
    """Whether no program can be started with this variable."""
    return len(f"{name}={text}".encode(errors="surrogateescape")) > LONGEST
