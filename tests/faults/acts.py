"""What a replica does in a round: the fault itself, and the way to its moment.

No framework here but where the ranks meet; replicas and launcher import this module.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import surroundings
from kinds import MEETING, Round

from tests.support.in_script import is_alive, leave_daemon, never_returns

__all__ = ["STEPS", "at_import", "value", "work"]

STEPS = 40
MEGABYTE = 1 << 20
HUGE = 48 * MEGABYTE


def mark(name: str, text: str = "") -> None:
    """Make a file that a waiting process finds complete; the first one counts."""
    path = f"{name}.{os.getpid()}"
    with open(path, "w") as file:
        file.write(text)
    try:
        os.link(path, name)
    except FileExistsError:
        pass
    os.unlink(path)


def wait_for(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.005)


def value(rank: int) -> list[Any]:
    """What a replica returns to which nothing has happened."""
    return ["fine", rank]


# --- the faults ----------------------------------------------------------------------------------


def _raise(round: Round) -> None:
    raise ValueError("planned")


def _raise_local(round: Round) -> None:
    class Unsendable(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("not to be sent")

    raise Unsendable("planned")


def _segfault(round: Round) -> None:
    ctypes.string_at(0)


def _stuck_native(round: Round) -> None:
    ctypes.PyDLL(None).sleep(300)  # holds the interpreter's lock


def _stuck_deaf(round: Round) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _stuck_native(round)


def _flood(round: Round) -> None:
    block = b"f" * 65535 + b"\n"
    for _ in range(200):
        os.write(2, block)
        os.write(1, block)


def _huge(round: Round) -> bytes:
    return bytes(HUGE)


def _file_limit(round: Round) -> bytes:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, hard))
    return _huge(round)


def _eat() -> None:
    """Until the kernel says no; every page is written."""
    eaten = []
    while True:
        eaten.append(mmap.mmap(-1, MEGABYTE))
        eaten[-1].write(b"x" * MEGABYTE)


def _out_of_memory(round: Round) -> None:
    surroundings.limit_memory(32 * MEGABYTE)
    _eat()


def _out_of_memory_result(round: Round) -> Any:
    result = b"x" * (4 * HUGE)  # more than the others free when they end
    surroundings.limit_memory(16 * MEGABYTE)
    return result


def _memory_error(round: Round) -> None:
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * mmap.PAGESIZE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + 16 * MEGABYTE, hard))
    eaten = []
    while True:
        eaten.append(bytearray(MEGABYTE))


def _daemon_raise(round: Round) -> None:
    leave_daemon()
    _raise(round)


def _close_streams(round: Round) -> None:
    for descriptor in range(3):
        os.close(descriptor)


def _signal(number: int) -> Callable[[Round], None]:
    return lambda _: os.kill(os.getpid(), number)


ACTS: dict[str, Callable[[Round], Any]] = {
    "raise": _raise,
    "raise-local": _raise_local,
    "sys-exit": lambda _: sys.exit(3),
    "sys-exit-text": lambda _: sys.exit("planned words"),
    "os-exit": lambda _: os._exit(17),
    "os-exit-0": lambda _: os._exit(0),
    "sigsegv": _segfault,
    "sigabrt": lambda _: os.abort(),
    "sigbus": _signal(signal.SIGBUS),
    "sigfpe": _signal(signal.SIGFPE),
    "sigill": _signal(signal.SIGILL),
    "sigkill": _signal(signal.SIGKILL),
    "sigterm": _signal(signal.SIGTERM),
    "sigint": _signal(signal.SIGINT),
    "sigstop": _signal(signal.SIGSTOP),
    "stuck-native": _stuck_native,
    "stuck-deaf": _stuck_deaf,
    "flood": _flood,
    "huge-result": _huge,
    "unpicklable-result": lambda _: threading.Lock(),
    "file-limit": _file_limit,
    "full-shm": _huge,
    "out-of-memory": _out_of_memory,
    "out-of-memory-result": _out_of_memory_result,
    "memory-error": _memory_error,
    "daemon": lambda _: leave_daemon(),
    "daemon-raise": _daemon_raise,
    "closes-streams": _close_streams,
}


def act(round: Round) -> Any:
    """It happens now. A result that is not None is what fn returns."""
    mark("fault", str(time.monotonic_ns()))
    if round.fault.outside:
        # The hand that does it looks for the file, and may need time.
        wait_for(lambda: os.path.exists("go"))
        return None
    return ACTS[round.kind](round) if round.kind in ACTS else None


# --- the moments ---------------------------------------------------------------------------------


def at_import(round: Round) -> None:
    """The user's module is imported: once for all, or by each replica."""
    rank = os.environ.get("RANK", str(round.victim))
    if round.moment == "import" and int(rank) == round.victim and not os.path.exists("over"):
        act(round)


def work(rank: int, round: Round) -> Any:
    """The user's function."""
    mark(f"in-fn-{rank}", str(os.getpid()))
    if round.moment in MEETING:
        return meet(rank, round)
    if rank != round.victim:
        return other(rank, round)
    if round.moment == "first":
        return given(act(round), rank)
    if round.moment == "late":
        wait_for(lambda: all(ended(other) for other in range(round.nprocs) if other != rank))
        return given(act(round), rank)
    if round.moment == "exit":
        atexit.register(act, round)
    return value(rank)


def given(result: Any, rank: int) -> Any:
    return value(rank) if result is None else result


def ended(rank: int) -> bool:
    try:
        with open(f"in-fn-{rank}") as file:
            return not is_alive(int(file.read()))
    except FileNotFoundError:
        return False


def other(rank: int, round: Round) -> Any:
    if round.moment == "late" or round.others == "return":
        return value(rank)
    if round.moment == "import":  # whose victim never gets here
        return value(rank)
    if round.others == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return never_returns()


def meet(rank: int, round: Round) -> Any:
    """All-reduces or barriers, in the middle of which it happens to one."""
    import xmp

    xmp.init_process_group()
    import torch
    import torch.distributed as dist

    if round.others == "deaf" and rank != round.victim:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    result, total = None, torch.zeros(1000)
    for step in range(STEPS):
        if rank == round.victim and step == round.step:
            result = act(round)
        if round.moment == "barrier":
            dist.barrier()
        else:
            total += rank
            dist.all_reduce(total)
    return given(result, rank)


def rank_itself(rank: int) -> int:
    return rank
