"""What the behaviour tests share: how a program is run, and what a process has."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import xmp

__all__ = [
    "BEGIN",
    "METHODS",
    "Done",
    "Script",
    "always_fails",
    "failure",
    "gone",
    "launch",
    "memory_group",
    "never_returns",
    "nothing_started",
    "run_script",
    "state",
    "wait_until",
    "who_by_reference",
]

METHODS = ["forkserver", "spawn", "fork"]

BEGIN = """
import ctypes, json, os, sys, time
import xmp

def start(fn, nprocs=2, **options):
    return xmp.spawn(fn, nprocs=nprocs, runtime="cpu", start_method=sys.argv[1], **options)
"""
"""How a program begins whose first argument is the start method."""


def launch(method: str, fn: Callable[..., Any], *args: Any, nprocs: int = 2, **options: Any) -> Any:
    """``xmp.spawn`` with what every behaviour test asks for."""
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


@dataclass(frozen=True)
class Done:
    """How a program ended, and what it wrote."""

    code: int
    out: str
    err: str
    seconds: float

    def json(self) -> Any:
        """The last line of standard output, after the program ended well."""
        assert self.code == 0, f"exit {self.code}\n{self.out}\n{self.err}"
        return json.loads(self.out.splitlines()[-1])


Script = Callable[..., Done]
"""The ``script`` fixture: source, arguments, and the options of ``run_script``."""


def run_script(
    arguments: Sequence[str],
    *,
    timeout: float = 25,
    cwd: Path | None = None,
    stdin: str | None = "",
    env: dict[str, str] | None = None,
    shell_before: str | None = None,
) -> Done:
    """Run this interpreter with ``arguments``; fails when it is not done in ``timeout`` seconds.

    ``shell_before`` is a shell command that runs first in the same process (``ulimit -n 256``).
    """
    command = [sys.executable, *arguments]
    if shell_before is not None:
        command = ["/bin/sh", "-c", f'{shell_before}; exec "$@"', "sh", *command]
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        tree = [process, *psutil.Process(process.pid).children(recursive=True)]
        names = [f"{p.name()} ({p.status()})" for p in tree if isinstance(p, psutil.Process)]
        for each in reversed(tree):
            try:
                each.kill()
            except (psutil.Error, OSError):
                pass
        out, err = process.communicate()
        raise AssertionError(
            f"not done within {timeout} s: {arguments}; below it {names}\n{out}\n{err}"
        ) from None
    return Done(process.returncode, out, err, time.monotonic() - begin)


def always_fails(rank: int) -> None:
    """Rank 1 raises in every attempt, the others wait."""
    if rank == 1:
        raise ValueError(f"attempt {xmp.restart_count()}")
    never_returns()


def never_returns() -> None:
    """Wait for what ends this process; a signal that only asks for stacks ends no waiting."""
    while True:
        signal.pause()


@contextmanager
def memory_group() -> Iterator[Path]:
    """A memory control group, version 1 or 2 as this host has it, without a limit."""
    import pytest  # not above: replicas import this module

    place = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            place = place / "memory" / path.strip("/")
    group = place / f"xmp-test-{uuid.uuid4().hex}"
    try:
        if place == Path("/sys/fs/cgroup"):
            (place / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        yield group
    finally:
        group.rmdir()


def gone(path: Path) -> bool:
    """Whether the process that has written its number into this file has ended."""
    number = path.read_text() if path.exists() else ""
    return bool(number) and not os.path.exists(f"/proc/{number}")


def wait_until(condition: Callable[[], Any], seconds: float = 10) -> None:
    """Wait until ``condition()`` is true; fails after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.005)


class nothing_started:  # noqa: N801 - reads as a statement: `with nothing_started():`
    """Fails when a child process is there afterwards, or was there and has been waited for."""

    def __enter__(self) -> None:
        xmp.preload(None)  # a template forks a spare some time after a launch
        self.before = self.seen()

    def __exit__(self, *_: object) -> None:
        assert self.seen() == self.before, "a process was started"

    @staticmethod
    def seen() -> tuple[set[int], int]:
        children = {p.pid for p in psutil.Process().children(recursive=True)}
        return children, resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
