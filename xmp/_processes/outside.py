"""The stacks of a launch as any process of its user can take them, also where all of it hangs.

A replica writes them into its own memory file when the signal comes; here the file is read. Neither
the launcher nor the supervisor has a part in it.
"""

from __future__ import annotations

import errno
import os
import pwd
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from xmp._errors import XmpError
from xmp._probe import launches
from xmp._probe.launches import Launch, Process

from . import kernel, stacks
from .members import STACKS
from .replica import DUMP_SIGNAL

__all__ = ["find", "taken", "tell"]

_NONE = "no launch of yours is running here"


def find(pid: int | None) -> list[Launch]:
    """The launches of a launcher, or the one of a process inside; None for the only one.

    Raises XmpError for a process that has no launch of this user's, and for None where there is
    none or more than one.
    """
    running = launches.launches()
    if pid is None:
        if len(running) == 1:
            return running
        told = "more than one launch is running: give a pid" + _listed(running)
        raise XmpError(told if running else _NONE)
    found = [launch for launch in running if pid in _inside(launch)]
    found = found or [launch for launch in running if pid == launch.launcher]
    if found:
        return found
    raise XmpError(_why_not(pid) + _listed(running))


def _inside(launch: Launch) -> set[int]:
    return {launch.supervisor.pid, *launch.members}


def _why_not(pid: int) -> str:
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return f"there is no process {pid}"
    if owner != os.geteuid():
        return f"process {pid} belongs to {_name(owner)}: only that user may ask for its stacks"
    return f"process {pid} is no launcher, supervisor or replica of a running launch"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _listed(running: Sequence[Launch]) -> str:
    if not running:
        return f"; {_NONE}"
    lines = [f"\n  pid {each.launcher}: {_what(each)}" for each in running]
    return "; running are" + "".join(lines)


def _what(launch: Launch) -> str:
    return f"{len(launch.replicas)} replicas, supervisor {launch.supervisor.pid}"


def tell(launch: Launch) -> str:
    """What the replicas of a launch are doing, equal stacks once."""
    kernel.raise_descriptor_limit()  # two for each replica
    head = f"launch of process {launch.launcher}: {_what(launch)}"
    if launch.supervisor.state in "Tt":
        head += " (stopped)"
    return "\n".join([head, *stacks.grouped(_take(launch.replicas))])


def taken(supervisor: int) -> dict[int, str]:
    """The stacks of all living replicas of one supervisor, by rank."""
    found = [each for each in launches.launches() if each.supervisor.pid == supervisor]
    return _take(found[0].replicas) if found else {}


def _take(replicas: Sequence[Process]) -> dict[int, str]:
    asked = [each for each in map(_Asked.of, replicas) if each is not None]
    try:
        return dict(sorted(stacks.take(asked).items()))
    finally:
        for each in asked:
            each.close()


@dataclass(eq=False)
class _Asked:
    """A replica as ``stacks.take`` wants it."""

    rank: int
    pid: int
    stacks: int
    watch: int | None
    ended: bool = False

    @classmethod
    def of(cls, process: Process) -> _Asked | None:
        """None for what has no such file (yet, or any more)."""
        watch = kernel.open_pidfd(process.pid)
        found = _file_of(process.pid)
        if found is None or launches.alive(process.pid) is None:
            if watch is not None:
                os.close(watch)
            return None
        return cls(found[0], process.pid, found[1], watch)

    def ask_stacks(self) -> int:
        """Send the signal, unless it would end the process."""
        size = os.fstat(self.stacks).st_size
        if _is_harmless(self.pid, DUMP_SIGNAL):
            try:
                if self.watch is not None:
                    signal.pidfd_send_signal(self.watch, DUMP_SIGNAL)
                else:
                    os.kill(self.pid, DUMP_SIGNAL)
            except ProcessLookupError:
                pass
        return size

    def answered(self, asked: int) -> str:
        """What has been written since."""
        size = os.fstat(self.stacks).st_size
        return os.pread(self.stacks, size - asked, asked).decode(errors="replace")

    def close(self) -> None:
        """Close what was opened to ask."""
        for descriptor in (self.stacks, self.watch):
            if descriptor is not None:
                os.close(descriptor)


def _file_of(pid: int) -> tuple[int, int] | None:
    """The rank and the opened stacks file of a replica: the last one is the inner launch's."""
    try:
        numbers = sorted(map(int, os.listdir(f"/proc/{pid}/fd")), reverse=True)
        for number in numbers:
            place = f"/proc/{pid}/fd/{number}"
            rank = os.readlink(place).partition(STACKS)[2].partition(" ")[0].partition("-")[0]
            if rank.isdigit():
                return int(rank), os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
    return None  # it has ended


def _is_harmless(pid: int, number: int) -> bool:
    """Whether a process handles or ignores a signal: by default it ends whom it reaches."""
    masks = {}
    try:
        with open(f"/proc/{pid}/status") as status:
            for line in status:
                name, _, value = line.partition(":")
                if name in ("SigIgn", "SigCgt"):
                    masks[name] = int(value, 16)
    except (OSError, ValueError):
        return False
    return any(mask >> (number - 1) & 1 for mask in masks.values())
