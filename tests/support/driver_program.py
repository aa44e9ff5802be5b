"""A driver for tests of engines: it launches what it reads, one launch after the other.

``driver_program.py FOLDER NUMBER``: each line of standard input is one launch, as ``Driver.launch``
writes it. Results, or what the error says, and when they came, are in the launch's file ``said``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import xmp
from tests.support import network_program
from tests.support.network_program import Do, described, mark

__all__ = ["run"]

_began: list[str] = []
"""The working folder of a replica before its function."""


def run(rank: int, do: Do, folder: str) -> Any:
    """A function of ``network_program`` or of this module, in the folder of the launch."""
    _began.append(os.getcwd())
    os.chdir(folder)
    own = globals().get(do.function)
    return (own or getattr(network_program, do.function))(rank, do)


def cleans(rank: int, do: Do) -> None:
    """Waits for ever, and notes how it ends."""
    try:
        network_program.waits(rank, do)
    finally:
        mark(f"cleaned-{rank}")


def stubborn(rank: int, do: Do) -> None:
    """Does not end when it is asked to."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    network_program.waits(rank, do)


def once(rank: int, do: Do) -> Any:
    """Waits in the first attempt; in others: the attempt, the world's size, and the host."""
    if not xmp.restart_count():
        network_program.waits(rank, do)
    return [xmp.restart_count(), xmp.world_size(), os.uname().nodename]


def hostname(rank: int, do: Do) -> Any:
    return os.uname().nodename


def surroundings(rank: int, do: Do) -> list[str | None]:
    """The host, the working folder that the function began in, and two variables."""
    names = ("XMP_TEST_WORD", "XMP_TEST_OTHER")
    return [os.uname().nodename, _began[-1], *map(os.environ.get, names)]


def says(rank: int, do: Do) -> None:
    print(f"says {rank} on {os.uname().nodename}")


def says_and_waits(rank: int, do: Do) -> None:
    print(f"says {rank}", flush=True)
    network_program.waits(rank, do)


def floods(rank: int, do: Do) -> int:
    """Writes 200 KB."""
    for number in range(2000):
        print(f"{rank} {number:097}")
    return rank


def until_preempted(rank: int, do: Do) -> int:
    return network_program.saves(rank, do)


def launched(do: Do, folder: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    job: Any = None
    mark(f"{folder}/begun", str(time.monotonic_ns()))
    try:
        job = xmp.launch(run, (do, folder), runtime=do.runtime, join=False, **do.options)
        said["results"] = list(job.results())
    except BaseException as error:
        said["error"] = described(error)
        said["error"]["history"] = [str(each) for each in getattr(error, "history", ())]
    said["at"] = time.monotonic_ns()
    if job is not None:
        said["hosts"] = [host.name for host in job.hosts]
    os.chdir(folder)
    mark("said", json.dumps(said))
    return said


def main() -> None:
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        said = launched(Do(**order["do"]), order["folder"])
        if said.get("error", {}).get("type") == "KeyboardInterrupt":
            sys.exit(130)


if __name__ == "__main__":
    main()
