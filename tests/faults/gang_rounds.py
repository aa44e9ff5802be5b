"""Random faults in a gang, within a call and between two: what is said, what the next call finds.

One program plays them all with one gang after the other; each line of its output is a round.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import xmp
from tests.support.in_script import never_returns

__all__ = ["play"]

ROOT = Path(__file__).resolve().parents[2]
KEPT, LOST = "keeps its replicas", "has lost its replicas"


def _kill(number: int) -> Callable[[], Any]:
    return lambda: os.kill(os.getpid(), number)


def _raise() -> None:
    raise ValueError("planned")


def _deaf() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    never_returns()


def _flood_and_raise() -> None:
    for _ in range(50):
        os.write(2, b"f" * 65535 + b"\n")
    raise ValueError("planned")


@dataclass(frozen=True)
class Fault:
    """What one rank does, and what must be said of it."""

    act: Callable[[], Any]
    error: type[xmp.ReplicaError]
    words: str
    kept: bool
    options: tuple[tuple[str, float], ...] = ()


_LIMIT = (("timeout", 0.5),)
FAULTS = {
    "raise": Fault(_raise, xmp.ReplicaRaised, "ValueError: planned", True),
    "flood": Fault(_flood_and_raise, xmp.ReplicaRaised, "ValueError: planned", True),
    "lock": Fault(threading.Lock, xmp.ReplicaRaised, "cannot be sent back", True),
    "exit": Fault(lambda: sys.exit(3), xmp.ReplicaDied, "sys.exit(3)", True),
    "exit-0": Fault(lambda: sys.exit(), xmp.ReplicaDied, "sys.exit()", True),
    "os-exit": Fault(lambda: os._exit(17), xmp.ReplicaDied, "exit code 17", False),
    "os-exit-0": Fault(lambda: os._exit(0), xmp.ReplicaDied, "exit code 0", False),
    "SIGKILL": Fault(_kill(signal.SIGKILL), xmp.ReplicaDied, "SIGKILL", False),
    "SIGSEGV": Fault(lambda: ctypes.string_at(0), xmp.ReplicaDied, "SIGSEGV", False),
    "SIGTERM": Fault(_kill(signal.SIGTERM), xmp.ReplicaDied, "SIGTERM", False),
    "SIGINT": Fault(_kill(signal.SIGINT), xmp.ReplicaDied, "KeyboardInterrupt", True),
    "sleeps": Fault(never_returns, xmp.ReplicaTimeout, "timeout=0.5", True, _LIMIT),
    "deaf": Fault(_deaf, xmp.ReplicaTimeout, "timeout=0.5", False, _LIMIT),
    "stopped": Fault(_kill(signal.SIGSTOP), xmp.ReplicaTimeout, "timeout=0.5", False, _LIMIT),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "return": lambda: None,
    "sleep": never_returns,
    "spin": lambda: [time.sleep(0.0005) for _ in range(100_000)],
}


def fails(rank: int, victim: int, fault: str, others: str, delay: float) -> Any:
    time.sleep(delay)
    return (FAULTS[fault].act if rank == victim else OTHERS[others])()


def count(rank: int) -> int:
    state = xmp.state()
    state.calls = getattr(state, "calls", 0) + 1
    return int(state.calls)


def one(gang: xmp.Gang, chance: random.Random, calls: int) -> str:
    """Play a round; what is wrong, empty for nothing."""
    name, others = chance.choice([*FAULTS]), chance.choice([*OTHERS])
    victim, delay = chance.randrange(gang.plan.world_size), chance.choice([0, 0.02])
    fault, generation = FAULTS[name], gang.generation
    between = name in ("SIGKILL", "SIGSEGV", "SIGTERM") and chance.random() < 0.5
    what = f"{name} of rank {victim}, others {others}, {'between' if between else 'within'} calls"
    try:
        if between:
            os.kill(gang.pids()[victim], getattr(signal, name))
            _wait(lambda: not gang.alive)
            gang.run(count)
        else:
            gang.run(fails, (victim, name, others, delay), **dict(fault.options))
    except xmp.ReplicaError as error:
        text = str(error)
        ranks = error.rank == victim or isinstance(error, xmp.ReplicaTimeout)
        end = KEPT if fault.kept else LOST
        if type(error) is not fault.error or fault.words not in text or not ranks:
            return f"{what}: {text}"
        if end not in text.splitlines()[-1]:
            return f"{what}: not {end!r}: {text}"
    else:
        return f"{what}: nothing was raised"
    found, wanted = gang.run(count), calls + 1 if fault.kept else 1
    if set(found) != {wanted} or gang.generation != generation + (not fault.kept):
        return f"{what}: the next call returned {found}, not {wanted}; {gang.generation}"
    return ""


def _wait(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.002)


def main(seed: int, rounds: int) -> int:
    chance, wrong = random.Random(seed), 0
    for number in range(rounds):
        method = chance.choice(["forkserver", "forkserver", "spawn", "fork"])
        nprocs = chance.choice([1, 2, 3])
        with xmp.gang(nprocs, runtime="cpu", start_method=method, grace=1) as gang:
            calls = gang.run(count)[0]
            found = one(gang, chance, calls)
            pids = gang.pids()
        if any(map(psutil.pid_exists, pids)):
            found = f"{found}; left: {pids}"
        wrong += bool(found)
        print(f"{'MISS' if found else 'ok'} {seed}/{number} {method} {nprocs}: {found}", flush=True)
    return 1 if wrong else 0


def play(seed: int, rounds: int) -> list[str]:
    """Run rounds in a program of their own; its lines."""
    done = subprocess.run(
        [sys.executable, __file__, str(seed), str(rounds)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
