"""One of many replicas is killed while the others wait: how soon is that known, and over?"""

import os
import signal
import time

import systems
import torch  # noqa: F401
from measured import Meeting, serve, system

SETTLE = 0.05  # what xmp waits after a failure, for reports that may explain it
VICTIM, WITNESS = 3, 0
SECOND = 2  # the column of the kill and of the first SIGTERM that follows


def fn(rank: int, meeting: Meeting) -> None:
    if rank == WITNESS:
        signal.signal(signal.SIGTERM, lambda *_: leave(meeting))
    meeting.mark(rank)
    if rank == VICTIM:
        while not meeting.complete():
            time.sleep(0.001)
        time.sleep(0.1)  # the others have come to rest
        meeting.mark(rank, SECOND)
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


def leave(meeting: Meeting) -> None:
    meeting.mark(WITNESS, SECOND)
    os._exit(0)


def spawned(meeting: Meeting) -> dict[str, float]:
    """Stacks have been taken and the cause is known when the others are ended."""
    import xmp

    try:
        systems.run(system(), fn, (meeting,), meeting.count)
    except xmp.ReplicaDied as error:
        raised, found = time.monotonic_ns(), error
    if (found.rank, found.signal_name) != (VICTIM, "SIGKILL"):
        raise ValueError(f"rank {found.rank} was blamed: {found}")
    if len(found.stacks) != meeting.count - 1:
        raise ValueError(f"{len(found.stacks)} stacks")
    killed, ended = (meeting.times(SECOND)[rank] for rank in (VICTIM, WITNESS))
    verdict, whole = (ended - killed) / 1e9, (raised - killed) / 1e9
    return {"verdict": verdict - SETTLE, "seconds": whole - SETTLE, "whole": whole}


def wait_for_ever(rank: int, meeting: Meeting) -> None:
    meeting.mark(rank)
    while True:
        signal.pause()


def forked(meeting: Meeting) -> dict[str, float]:
    """Measure the least that ending as many processes costs."""
    pids = systems.fork_all(wait_for_ever, (meeting,), meeting.count)
    while not meeting.complete():
        time.sleep(0.001)
    time.sleep(0.1)
    killed = time.monotonic_ns()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    return {"seconds": (time.monotonic_ns() - killed) / 1e9}


if __name__ == "__main__":
    serve(forked if system() == "floor" else spawned)
