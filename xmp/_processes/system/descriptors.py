"""Descriptor numbers: moving, closing and listing them, and keeping them from programs."""

from __future__ import annotations

import fcntl
import os
import resource
import stat
import sys
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager

from . import linux

__all__ = [
    "Held", "close_all", "close_from", "highest_descriptor", "is_socket", "keep_from_exec",
    "move_above", "raise_descriptor_limit", "redirect_others_to_null", "redirect_to_null",
    "standard_numbers_taken",
]  # fmt: skip


class Held:
    """A descriptor of xmp in a process whose program may close it between two uses.

    A program may close all descriptors that it has not opened itself (``os.closerange``). The
    kernel then gives their numbers to files that it opens next, which xmp must neither write to nor
    close.
    """

    def __init__(self, number: int = -1) -> None:
        """Hold the descriptor ``number``; -1: none yet, or none any more."""
        self.number = number
        self._file = _file_at(number)

    @property
    def is_ours(self) -> bool:
        """Whether the number still refers to the file that it first referred to."""
        return self._file is not None and _file_at(self.number) == self._file

    def close(self) -> None:
        """Close it if it is still ours; do nothing the second time."""
        if self.is_ours:
            os.close(self.number)
        self.number, self._file = -1, None


def _file_at(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def move_above(descriptor: int, base: int, inheritable: bool = False) -> int:
    """Move a descriptor to a number that is at least ``base``."""
    command = fcntl.F_DUPFD if inheritable else fcntl.F_DUPFD_CLOEXEC
    moved = fcntl.fcntl(descriptor, command, base)
    os.close(descriptor)
    return moved


def keep_from_exec(descriptors: Iterable[int]) -> None:
    """Have these descriptors closed in every program that this process or a child of it executes.

    They had to survive one exec to reach a fresh interpreter. A program that the user's code then
    starts, perhaps as another user, must not inherit a socket whose other end trusts this process.
    """
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)


def _open_descriptors() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return [int(name) for name in os.listdir(folder)]
        except OSError:
            continue
    return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def highest_descriptor() -> int:
    return max(_open_descriptors())


def close_from(base: int) -> None:
    """Close every descriptor from ``base`` up."""
    if linux.close_range(base):
        return
    for descriptor in _open_descriptors():
        if descriptor >= base:
            try:
                os.close(descriptor)
            except OSError:
                pass  # the directory listing's own descriptor is gone already


def redirect_others_to_null(keep: Container[int], below: int = sys.maxsize) -> None:
    """Make every descriptor above 2 and under ``below`` that is not in ``keep`` mean /dev/null.

    The numbers stay in use: a stale object that still writes to its number, or closes it, must not
    hit a file that was opened since.
    """
    found = []
    for descriptor in _open_descriptors():
        if 2 < descriptor < below and descriptor not in keep:
            try:
                os.fstat(descriptor)
            except OSError:
                continue  # the directory listing's own descriptor is gone already
            found.append(descriptor)
    redirect_to_null(found)


def redirect_to_null(descriptors: Iterable[int]) -> None:
    """Make these descriptors mean /dev/null, which closes their open files."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one."""
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # A sandbox; or macOS: it reports a hard limit (RLIM_INFINITY) that it then refuses.
        pass


@contextmanager
def standard_numbers_taken() -> Iterator[None]:
    """While inside, give no new descriptor a number below 3, even if those numbers are closed."""
    taken: list[int] = []
    while (number := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        taken.append(number)
    os.close(number)
    try:
        yield
    finally:
        close_all(taken)


def is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
