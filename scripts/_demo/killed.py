"""Part 2: one replica is killed while the others wait for it; nothing may be left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import uuid
from dataclasses import dataclass
from typing import Any

import psutil
from rich.console import Console

import xmp

MARK = "XMP_DEMO"
MOST_SECONDS = 5.0


@dataclass(frozen=True)
class Verdict:
    """How a launch ended in which one replica was killed."""

    seconds: float
    left: tuple[str, ...]

    def faults(self) -> list[str]:
        wrong = [f"left behind: {line}" for line in self.left]
        if self.seconds > MOST_SECONDS:
            wrong.append(f"the verdict took {self.seconds:.1f} s")
        return wrong


def mark_our_processes() -> None:
    """Everything that is started from here on can be found again, orphans too."""
    os.environ[MARK] = uuid.uuid4().hex


def victim_of(replicas: int) -> int:
    return min(3, replicas - 1)


def meet_until_one_dies(rank: int, victim: int, moment: Any) -> None:
    xmp.init_process_group()
    xmp.barrier()
    if rank == victim:
        moment.value = time.monotonic()
        os.kill(os.getpid(), signal.SIGKILL)
    xmp.barrier()  # waits for one that never comes


def kill_one(runtime: str, replicas: int, console: Console) -> Verdict:
    """Start, lose one replica, print xmp's report, count what is left."""
    moment = multiprocessing.get_context("spawn").Value("d", 0.0)
    context = xmp.spawn(
        meet_until_one_dies,
        args=(victim_of(replicas), moment),
        nprocs=replicas,
        runtime=runtime,
        join=False,
        start_method="forkserver",
    )
    pids = context.pids()
    try:
        while not context.join():
            pass
    except xmp.ReplicaDied as error:
        seconds = time.monotonic() - moment.value
        console.print(str(error), markup=False)
    else:
        raise SystemExit("a replica was killed, and the launch did not say so")
    xmp.preload(None)  # the warm template would wait for the next spawn
    left = tuple(what_is_left(pids))
    console.print(f"{seconds:.2f} s from the kill to the verdict, {len(left)} processes left")
    return Verdict(seconds, left)


def what_is_left(pids: list[int]) -> list[str]:
    """Replicas that still exist, our children, and whatever carries our mark."""
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        if process.pid in pids or carries_mark(process):
            found[process.pid] = process
    return [f"{process.pid} {' '.join(process.cmdline())}" for process in found.values()]


def carries_mark(process: psutil.Process) -> bool:
    try:
        mine = process.environ().get(MARK) == os.environ[MARK]
    except psutil.Error:
        return False
    return mine and process.pid != os.getpid()
