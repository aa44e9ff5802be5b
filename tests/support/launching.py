"""Launches from a test's own process, and functions for their replicas."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

import psutil

import xmp
from tests.support.in_script import never_returns
from tests.support.waiting import until

__all__ = [
    "BEGIN",
    "METHODS",
    "SlowToPickle",
    "always_fails",
    "failure",
    "launch",
    "never_returns",
    "nothing_started",
    "state",
    "who_by_reference",
]

METHODS = ("forkserver", "spawn", "fork")

BEGIN = """
import ctypes, json, os, sys, time
import xmp

def start(fn, nprocs=2, **options):
    return xmp.spawn(fn, nprocs=nprocs, runtime="cpu", start_method=sys.argv[1], **options)
"""
"""How a program begins whose first argument is the start method."""


def launch(method: str, fn: Callable[..., Any], *args: Any, nprocs: int = 2, **options: Any) -> Any:
    """``xmp.spawn`` of two replicas on the CPU."""
    options.setdefault("runtime", "cpu")
    return xmp.spawn(fn, args, nprocs=nprocs, start_method=method, **options)


def failure(method: str, fn: Any, *args: Any, **options: Any) -> xmp.ReplicaError:
    """The error of a launch that fails."""
    import pytest  # not above: replicas import this module

    with pytest.raises(xmp.ReplicaError) as caught:
        launch(method, fn, *args, **options)
    return caught.value


def who_by_reference(rank: int, *args: Any) -> tuple[int, int, tuple[Any, ...]]:
    """A function that a replica can import by name."""
    return rank, os.getpid(), args


def state(rank: int) -> dict[str, Any]:
    """What a process takes from the one that started it."""
    umask = os.umask(0)
    os.umask(umask)
    return {
        "cwd": os.getcwd(),
        "path": sys.path[:],
        "argv": sys.argv[:],
        "umask": umask,
        "cpus": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "fsize": resource.getrlimit(resource.RLIMIT_FSIZE),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "usr1": signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN,
        "hup": signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
        "pipe": signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN,
        "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "chld": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
    }


def always_fails(rank: int) -> None:
    """Rank 1 raises in every attempt, the others wait."""
    if rank == 1:
        raise ValueError(f"attempt {xmp.restart_count()}")
    never_returns()


class nothing_started:  # noqa: N801 - reads as a statement: `with nothing_started():`
    """Fails when a child process is there afterwards, or was there and has been waited for.

    Templates that are up are set aside, with all that they fork (a spare some time after a launch):
    whatever launches would start another.
    """

    def __enter__(self) -> None:
        from xmp._processes.launcher.template_pool import templates  # replicas import this module

        self.pool, self.warm = templates, templates._warm
        self.pool._warm = []
        self.before = self.seen()

    def __exit__(self, *_: object) -> None:
        try:
            assert self.seen() == self.before, "a process was started"
        finally:
            started, self.pool._warm = self.pool._warm, self.warm
            for template in started:
                template.close()

    def seen(self) -> tuple[set[int], int]:
        aside = {template.pid for template in self.warm}
        own = [p for p in psutil.Process().children() if p.pid not in aside]
        children = {p.pid for each in own for p in (each, *each.children(recursive=True))}
        return children, resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


class SlowToPickle:
    """Takes its time when it is pickled."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self.over = over

    def __reduce__(self) -> tuple[Any, ...]:
        until(self.over, 20)
        return str, ("slow",)
