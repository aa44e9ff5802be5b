"""What scripts call, in the launcher and in replicas. No framework here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from typing import NoReturn

TOKEN = "XMP_TEST_STAGE"
PF_FORKNOEXEC = 0x40  # Linux: forked, and has not called exec since
BEGAN = time.time() - 1  # the kernel's clock for files may be some milliseconds behind


def say(**facts: object) -> None:
    """One line to standard output, in one write."""
    os.write(1, b"@" + json.dumps(facts).encode() + b"\n")


def never_returns() -> NoReturn:
    """Wait for what ends this process; a signal that only asks for stacks ends no waiting."""
    while True:
        signal.pause()


def leave_daemon() -> None:
    """A process that double-forks, has its own session, and ignores SIGTERM, SIGINT and SIGHUP."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            never_returns()
        os._exit(0)


def forked() -> bool:
    """Whether this process came by fork and is still in that image."""
    with open("/proc/self/stat") as file:
        return bool(int(file.read().rpartition(")")[2].split()[6]) & PF_FORKNOEXEC)


def tasks() -> int:
    """Threads of this process as the kernel counts them."""
    return len(os.listdir("/proc/self/task"))


def comm(pid: int | str) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def descendants(pid: int) -> list[int]:
    """Every living process below ``pid``, those of adopted orphans too."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                place = parent(int(name))
                while place not in (0, 1, pid):
                    place = parent(place)
            except (OSError, ValueError):
                continue
            if place == pid:
                found.append(int(name))
    return found


def carrying(token: str) -> dict[int, str]:
    """The living processes that carry a token, with their names; zombies have no environment."""
    wanted = f"{TOKEN}={token}".encode()
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found[int(name)] = comm(name)
        except OSError:
            continue
    return found


def state(pid: int) -> str:
    """The kernel's letter for what a process does; X when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def signals(pid: int | str, field: str) -> set[int]:
    """One of the kernel's masks: SigCgt, SigIgn, SigBlk, SigPnd (a thread's), ShdPnd."""
    with open(f"/proc/{pid}/status") as file:
        mask = int(file.read().partition(f"{field}:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def is_alive(pid: int) -> bool:
    """Whether there is such a process and it is more than an exit code."""
    return state(pid) not in "ZX"


def children() -> list[int]:
    """The living children of this process."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split() if is_alive(int(pid))]


def cpu_ticks(pid: int) -> int:
    """What a process has used of the processor, in clock ticks."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def called(name: str) -> list[int]:
    """The living processes below this one that have this name.

    Not what one of them has just forked, which has its parent's name until it has its own.
    """
    found = {pid for pid in descendants(os.getpid()) if comm(pid) == name and is_alive(pid)}
    forks = set()
    for pid in found:
        with contextlib.suppress(OSError):  # it has ended
            forks |= {pid} if parent(pid) in found else set()
    return sorted(found - forks)


def switches(pid: int) -> int:
    """How often a process has gone to sleep."""
    with open(f"/proc/{pid}/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["voluntary_ctxt_switches"])


def templates() -> list[int]:
    return called("xmp-template")


def template_above() -> int:
    """The pid of the template that this process comes from, 0 without one."""
    place = os.getpid()
    while place > 1 and comm(place) != "xmp-template":
        place = parent(place)
    return place if place > 1 else 0


def shared_memory() -> set[str]:
    """Files in shared memory from this program's time; those of others, which come and go, are
    waited for. A process that was killed once may have left some for good.
    """
    end = time.monotonic() + 3
    while (found := new_memory()) and (found := found - foreign_memory()):
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return found


def new_memory() -> set[str]:
    found = set()
    for entry in os.scandir("/dev/shm"):
        with contextlib.suppress(FileNotFoundError):
            if entry.stat().st_ctime > BEGAN:
                found.add(entry.name)
    return found


def foreign_memory() -> set[str]:
    """Files in shared memory that other processes have mapped."""
    own = {os.getpid(), *descendants(os.getpid())}
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in own:
            try:
                with open(f"/proc/{name}/maps") as maps:
                    lines = [line for line in maps if "/dev/shm/" in line]
            except OSError:
                continue
            found |= {line.partition("/dev/shm/")[2].split()[0] for line in lines}
    return found


def is_spare(pid: int) -> bool:
    """A spare comes some milliseconds after a launch; until it has its name it has its parent's.

    test_spare.py counts them.
    """
    name = comm(pid)
    try:
        return name == "xmp-spare" or (name.startswith("xmp-") and name == comm(parent(pid)))
    except OSError:  # it has ended
        return False


def belongings() -> dict[str, object]:
    """What this process holds: numbers that must not grow."""
    kinds: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]
        except OSError:
            continue
        kinds[target] = kinds.get(target, 0) + 1
    kinds.pop(f"/proc/{os.getpid()}/fd", None)
    below = sorted(comm(pid) for pid in descendants(os.getpid()) if not is_spare(pid))
    return {
        "descriptors": kinds,
        "threads": len(threading.enumerate()),
        "processes": below,
        "shared": sorted(shared_memory()),
    }


def listening() -> list[list[object]]:
    """The addresses and ports on which this process listens."""
    own = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            own.add(target[8:-1])
    found: list[list[object]] = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with open(f"/proc/self/net/{table}") as lines:
            for fields in list(map(str.split, lines))[1:]:
                if fields[3] == "0A" and fields[9] in own:  # 0A is LISTEN
                    address, port = fields[1].split(":")
                    words = [address[i : i + 8] for i in range(0, len(address), 8)]
                    raw = b"".join(bytes.fromhex(word)[::-1] for word in words)
                    found.append([socket.inet_ntop(family, raw), int(port, 16)])
    return found


def holders(port: int) -> list[int]:
    """Every process that has the socket open which listens on a port of loopback."""
    with open("/proc/self/net/tcp") as lines:
        rows = [line.split() for line in lines][1:]
    inodes = {f"socket:[{r[9]}]" for r in rows if r[3] == "0A" and int(r[1][-4:], 16) == port}
    found = filter(lambda pid: inodes & open_files(pid), filter(str.isdigit, os.listdir("/proc")))
    return sorted(map(int, found))


def open_files(pid: str) -> set[str]:
    """What the descriptors of a process lead to, as far as one may look."""
    found = set()
    with contextlib.suppress(OSError):  # gone meanwhile, or another user's
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
