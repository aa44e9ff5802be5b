"""Part 2: one replica is killed while the others wait for it; nothing may be left."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console

import xmp

MARK = "XMP_DEMO"
MOST_SECONDS = 5.0


@dataclass(frozen=True)
class Verdict:
    """How a launch ended in which one replica was killed."""

    expected: int
    blamed: str
    seconds: float
    left: tuple[str, ...]
    lives: tuple[tuple[float, float], ...]
    """For each rank, when its function began and its process ended, in seconds since the call."""
    verdict: float
    """When xmp said which replica had failed, in seconds since the call."""

    def faults(self) -> list[str]:
        wrong = [f"left behind: {line}" for line in self.left]
        if self.blamed != f"rank {self.expected}, SIGKILL":
            wrong.append(f"{self.blamed} was blamed for what rank {self.expected} did")
        if self.seconds > MOST_SECONDS:
            wrong.append(f"the verdict took {self.seconds:.1f} s")
        return wrong


def mark_our_processes() -> None:
    """Everything that is started from here on can be found again, orphans too."""
    os.environ[MARK] = uuid.uuid4().hex


def victim_of(replicas: int) -> int:
    return min(3, replicas - 1)


def meet_until_one_dies(rank: int, victim: int, note: Path) -> None:
    xmp.init_process_group()
    xmp.barrier()
    if rank == victim:
        note.write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    xmp.barrier()  # waits for one that never comes


def kill_one(runtime: str, replicas: int, console: Console) -> Verdict:
    """Start, lose one replica, print xmp's report, count what is left."""
    victim = victim_of(replicas)
    events: list[xmp.Event] = []
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "killed-at"
        context = xmp.spawn(
            meet_until_one_dies,
            args=(victim, note),
            nprocs=replicas,
            runtime=runtime,
            join=False,
            events=events.append,
        )
        pids = context.pids()
        error = ending_of(context)
        seconds = time.monotonic() - float(note.read_text())
    console.print(str(error), markup=False)
    xmp.shutdown()  # the warm template would wait for the next spawn
    left = tuple(what_is_left(pids))
    console.print(
        f"\n[bold]{seconds:.2f} s from the kill to the verdict, {len(left)} processes left[/]"
    )
    blamed = f"rank {error.rank}, {error.signal_name}"
    lives = tuple(life_of(rank, events) for rank in range(replicas))
    return Verdict(victim, blamed, seconds, left, lives, when("verdict", events))


def when(name: str, events: list[xmp.Event]) -> float:
    return next(event.elapsed for event in events if event.name == name)


def life_of(rank: int, events: list[xmp.Event]) -> tuple[float, float]:
    """Return when the function of ``rank`` began, and when its process ended."""
    own = [event for event in events if event.rank == rank and event.name != "verdict"]
    return when("running", own), own[-1].elapsed


def ending_of(context: xmp.ProcessContext) -> xmp.ReplicaError:
    """Return the error with which ``context`` ends."""
    try:
        while not context.join():
            pass
    except xmp.ReplicaError as error:
        return error
    raise SystemExit("a replica was killed, and the launch did not say so")


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
