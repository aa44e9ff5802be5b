"""Forty programs that do not hang, though one rank comes late: nothing may be said of them.

Ten kinds of work, each before four collectives. The late rank works for longer than the limit, and
the others wait for it.

python -m tests.hangs.healthy [NAME...]
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xmp

from .meetings import MEETINGS

__all__ = ["HEALTHY", "main", "run"]

LIMIT, LONG = 2, 4
"""Seconds: XMP_HANG_NOTICE, and how long the late rank works."""
_MEETINGS = ("xmp_barrier", "xmp_all_reduce", "torch_all_reduce", "jax_process_allgather")
_AT_A_TIME = 3


def _seconds() -> Iterator[float]:
    """Yield the time that has passed, until the work is done."""
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < LONG:
        yield passed


def evaluates() -> None:
    for _ in _seconds():
        sum(number * number for number in range(10_000))


def in_one_native_call() -> None:
    """Linear algebra for seconds: the interpreter does nothing."""
    import numpy as np

    begun, matrix, power = time.monotonic(), np.ones((300, 300)) / 300, 20
    while time.monotonic() - begun < LONG:
        np.linalg.matrix_power(matrix, power)
        power *= 2 if power < 10_000 else 1


def compiles() -> None:
    """Wait for a program that computes."""
    code = (
        f"import time\nend = time.monotonic() + {LONG}\n"
        "while time.monotonic() < end: sum(range(999))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def saves_a_checkpoint() -> None:
    with tempfile.TemporaryFile() as file:
        for _ in _seconds():
            file.write(bytes(1 << 16))
            os.fsync(file.fileno())
            time.sleep(0.05)


def reads_a_data_set() -> None:
    with open("/dev/zero", "rb", buffering=0) as file:
        for _ in _seconds():
            file.read(1 << 16)
            time.sleep(0.05)


def downloads() -> None:
    """Read slowly from a socket, into a file."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        for _ in _seconds():
            theirs.sendall(bytes(1000))
            time.sleep(0.05)
        theirs.close()

    threading.Thread(target=send).start()
    with tempfile.TemporaryFile() as file:
        while data := ours.recv(1000):
            file.write(data)
            file.flush()


def waits_for_a_slow_loader() -> None:
    """The first batch of a data loader, which a worker computes."""
    import torch

    class Slow(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            evaluates()
            return index

    next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))


def waits_for_its_threads() -> None:
    threads = [threading.Thread(target=evaluates) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def says_that_it_lives() -> None:
    for _ in _seconds():
        xmp.heartbeat()
        time.sleep(0.2)


def works_in_bursts() -> None:
    for passed in _seconds():
        if passed % 1 < 0.5:
            sum(range(10_000))
        else:
            time.sleep(0.05)


WORK: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        evaluates, in_one_native_call, compiles, saves_a_checkpoint, reads_a_data_set, downloads,
        waits_for_a_slow_loader, waits_for_its_threads, says_that_it_lives, works_in_bursts,
    )
}  # fmt: skip
HEALTHY = [f"{work}-{meeting}" for work in WORK for meeting in _MEETINGS]


def run(rank: int, name: str) -> str:
    """Come late as the name says; the function of the replicas."""
    work, meeting = name.split("-")
    MEETINGS[meeting][1](WORK[work] if rank == 2 else int)
    return "healthy"


def said_of(name: str) -> str:
    """Run a program; return what was said of it, or what it failed with."""
    notices: list[str] = []

    def note(event: xmp.Event) -> None:
        if event.name == "waiting":
            notices.append(event.message)

    meeting = name.partition("-")[2]
    options: dict[str, Any] = {"nprocs": 3, "runtime": MEETINGS[meeting][0], "events": note}
    if meeting.startswith("xmp"):  # of other collectives xmp knows no progress
        options["hang_timeout"] = LIMIT + 1
    try:
        xmp.spawn(run, (name,), timeout=20 * LONG, **options)
    except xmp.XmpError as error:
        return str(error)
    return "; ".join(notices)


def main(names: list[str]) -> int:
    """Run the named programs, or all; print those of which something was said."""
    xmp.preload("torch", "jax")
    os.environ["XMP_HANG_NOTICE"] = str(LIMIT)
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        said = dict(zip(names or HEALTHY, pool.map(said_of, names or HEALTHY), strict=True))
    for name, words in said.items():
        if words:
            print(f"{name}: {words}")
    print(f"{sum(not words for words in said.values())} of {len(said)}: nothing said")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
