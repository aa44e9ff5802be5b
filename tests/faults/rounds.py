"""Runs one round: a launcher in its own session, the fault, and what is left of it all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import surroundings
from judge import Facts, misses, seconds
from kinds import Round

from tests.support.in_script import parent
from tests.support.stage import ROOT, SUPPORT, Stage, slowness
from tests.support.waiting import until

__all__ = ["AT_ONCE", "Outcome", "play"]

AT_ONCE = max(2, os.cpu_count() or 2) + 1
"""Most of a round is waiting."""

HERE = Path(__file__).resolve().parent
_DEADLINE = 120.0
_AFTER = 1.0
"""Seconds in which everything of a launch must be gone, on a host that is not slow."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a round went."""

    round: Round
    misses: list[str]
    seconds: float | None
    """From the fault to the verdict, where there is one."""
    lasted: float

    def __str__(self) -> str:
        place = f"{self.round.seed}/{self.round.number}"
        verdict = "" if self.seconds is None else f" verdict {self.seconds:.2f} s"
        line = f"{'MISS' if self.misses else 'ok  '} {place:>9}{verdict:>15}  {self.round}"
        return "\n".join([line, *(f"     {miss}" for miss in self.misses)])


def play(round: Round) -> Outcome:
    """Run a round in its own folder, which goes with it unless something was missed."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="xmp-fault-"))
    stage = Stage(folder)
    facts = None
    try:
        with _group(round, stage) as env:
            facts = _run(round, stage, env)
        found = misses(round, facts)
    except (AssertionError, pytest.fail.Exception, OSError) as error:
        found = [f"{type(error).__name__}: {error}"]
    finally:
        stage.end()
    if found:
        found = [*found, f"its files: {folder}"]
    else:
        shutil.rmtree(folder)
    took = None if facts is None else seconds(round, facts)
    return Outcome(round, found, took, time.monotonic() - began)


@contextlib.contextmanager
def _group(round: Round, stage: Stage) -> Iterator[dict[str, str]]:
    """A memory group where the round needs one; it must be empty at the end."""
    if not round.kind.startswith("out-of-memory"):
        yield {}
        return
    path = surroundings.make_group(f"xmp-faults-{stage.token}")
    try:
        yield {surroundings.GROUP: str(path)}
    finally:
        stage.end()
        until(lambda: not (path / "cgroup.procs").read_text(), 10, "the memory group is empty")
        path.rmdir()


def _run(round: Round, stage: Stage, env: dict[str, str]) -> Facts:
    (stage.folder / "tmp").mkdir()
    path = os.pathsep.join(map(str, (HERE, SUPPORT, ROOT)))
    env = {**env, "PYTHONPATH": path, "TMPDIR": str(stage.folder / "tmp")}
    source = (HERE / "launching.py").read_text()
    process = stage.start(source, json.dumps(dataclasses.asdict(round)), env=env)
    fault, memory = None, -1
    try:
        until(lambda: _is_there(stage, "fault") or process.poll() is not None, _DEADLINE, "fault")
        memory = _shared_memory(process.pid)
        slow = slowness()
        if round.fault.outside and process.poll() is None:
            fault = _attack(round, stage)
        outcome = stage.outcome(process, _DEADLINE)
        own, slow = _own_child(stage), max(slow, slowness())
        left = _left(stage, own, slow)
        files = [f"TMPDIR/{name}" for name in os.listdir(stage.folder / "tmp")]
        files += [f"/dev/shm/{name}" for name in _names(memory, slow)]
    finally:
        if memory >= 0:
            os.close(memory)
    if fault is None and _is_there(stage, "fault"):
        fault = int((stage.folder / "fault").read_text())
    said = stage.folder / "said"
    trouble = stage.folder / "trouble"
    err = trouble.read_text() if trouble.exists() else outcome.err
    return Facts(
        outcome.code, err, fault,
        json.loads(said.read_text()) if said.exists() else None, left, tuple(files),
        slow,
    )  # fmt: skip


def _is_there(stage: Stage, name: str) -> bool:
    return (stage.folder / name).exists()


def _attack(round: Round, stage: Stage) -> int:
    """Do it to a process that is no replica; when that was."""
    victim = {
        "launcher": lambda: [stage.last.pid],
        "supervisor": stage.supervisors,
        "template": lambda: stage.first_of("xmp-template"),
        "holder": lambda: stage.first_of("xmp-script"),
        "keeper": lambda: stage.named("xmp-keeper"),
    }[round.fault.outside]
    (pid,) = victim()
    if round.kind == "parent-killed":
        until(lambda: _is_there(stage, "child"), 10, "the launcher's own child")
    at = time.monotonic_ns()
    os.kill(pid, signal.SIGSTOP if round.kind == "supervisor-stopped" else signal.SIGKILL)
    if round.fault.verdict == "":
        until(lambda: pid not in stage.alive(), 10, f"the end of {pid}")
        (stage.folder / "go").touch()
    return at


def _own_child(stage: Stage) -> int:
    path = stage.folder / "child"
    return int(path.read_text()) if path.exists() else 0


def _left(stage: Stage, own: int, slow: float) -> dict[int, str]:
    """What is still there a second later."""
    end = time.monotonic() + _AFTER * slow
    while True:
        left = {pid: name for pid, name in stage.alive().items() if pid != own}
        if not left or time.monotonic() > end:
            return {pid: f"{name}, child of {_parent(pid)}" for pid, name in left.items()}
        time.sleep(0.01)


def _parent(pid: int) -> int:
    try:
        return parent(pid)
    except OSError:
        return 0


def _shared_memory(pid: int) -> int:
    """The launcher's own /dev/shm, which outlives it for as long as we hold it."""
    if os.geteuid() != 0:
        return -1
    try:
        return os.open(f"/proc/{pid}/root/dev/shm", os.O_RDONLY)
    except OSError:
        return -1


def _names(memory: int, slow: float) -> list[str]:
    """What is in it now; multiprocessing's tracker clears away after its last client's end."""
    end = time.monotonic() + _AFTER * slow
    while memory >= 0 and os.listdir(memory) and time.monotonic() < end:
        time.sleep(0.01)
    return os.listdir(memory) if memory >= 0 else []
