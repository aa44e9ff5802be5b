"""Calls of replicas that stay: a gang of xmp's, actors of Ray, and forks that answer over a socket.

One round makes each kind of call a few times, and keeps the median.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measured import Meeting, serve, system

COUNT = 8
ARRAY, RESULT = 64 * 2**20, 2**20
TIMES = {"no-op": 100, "lambda": 60, "array": 3, "results": 5, "up": 3}


def nothing(rank: int, *args: Any) -> None:
    pass


def result(rank: int) -> Any:
    return np.full(RESULT // 8, rank, dtype=np.float64)


def _xmp() -> dict[str, Callable[[], Any]]:
    import xmp

    def up() -> None:
        with xmp.gang(COUNT, runtime="cpu") as gang:
            gang.run(nothing)

    gang, array = xmp.gang(COUNT, runtime="cpu"), np.ones(ARRAY // 8)
    return {
        "no-op": lambda: gang.run(nothing),
        "lambda": lambda: gang.run(lambda rank: None),
        "array": lambda: gang.run(nothing, (array,)),
        "results": lambda: gang.run(result),
        "up": up,
    }


def _ray() -> dict[str, Callable[[], Any]]:
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    import ray

    ray.init(num_cpus=COUNT, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    class Replica:
        """An actor, which can call a function that is sent."""

        def nothing(self, rank: int, *args: Any) -> None:
            pass

        def result(self, rank: int) -> Any:
            return result(rank)

        def call(self, rank: int, fn: Callable[[int], Any]) -> Any:
            return fn(rank)

    actor = ray.remote(num_cpus=0)(Replica)

    def made() -> list[Any]:
        actors = [actor.remote() for _ in range(COUNT)]
        ray.get([each.nothing.remote(0) for each in actors])
        return actors

    def up() -> None:
        for each in made():
            ray.kill(each)

    actors, array = made(), np.ones(ARRAY // 8)

    def called(name: str, *args: Any) -> None:
        ray.get([getattr(a, name).remote(rank, *args) for rank, a in enumerate(actors)])

    return {
        "no-op": lambda: called("nothing"),
        "lambda": lambda: called("call", lambda rank: None),
        "array": lambda: called("nothing", ray.put(array)),
        "results": lambda: called("result"),
        "up": up,
    }


def _sockets() -> dict[str, Callable[[], Any]]:
    """Send a byte to each of eight processes, and get one back: the least that a call costs."""
    ends = []
    for _ in range(COUNT):
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            while theirs.recv(1):
                theirs.send(b"x")
            os._exit(0)
        theirs.close()
        ends.append(ours)

    def call() -> None:
        for each in ends:
            each.send(b"x")
        for each in ends:
            each.recv(1)

    return {"no-op": call}


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # Ray writes there while it starts
    calls = {"xmp": _xmp, "ray": _ray, "floor": _sockets}[system()]()
    for call in calls.values():
        call()
    os.dup2(answers, 1)
    os.close(answers)

    def measure(meeting: Meeting) -> dict[str, float]:
        return {f"seconds@{name}": _median(call, TIMES[name]) for name, call in calls.items()}

    serve(measure)


def _median(call: Callable[[], Any], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.monotonic_ns()
        call()
        took.append((time.monotonic_ns() - began) / 1e9)
    return statistics.median(took)


if __name__ == "__main__":
    main()
