"""What a test leaves behind fails it: processes, threads, descriptors, files in /dev/shm.

Processes are the children of this one, and any that carry this session's mark in their
environment: orphans, too. xmp's template process may stay from one test to the next. It is ended
with each module, or stays for the next one where both import a framework: to import torch again
costs 2 to 3 s of processor time. A module that counts or changes templates has the mark
``own_template``.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import multiprocessing
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.lazily import frameworks_of
from tests.support.stage import parent_of

__all__ = ["MARK", "STAGES"]

MARK = "XMP_TEST_SESSION"
STAGES = {"stage", "shared_stage"}
DEADLINE = 3.0  # seconds that something which is on its way out may take
# The process names of what may stay until xmp.shutdown(); its forks have its command line.
TEMPLATES = {"xmp-template", "xmp-script", "xmp-agent"}
# Folders of tests that end the templates with each module: frameworks that hold devices, clusters.
ALONE = {
    "xla", "torch_tpu", "libtpu", "paddle", "ray", "slurm", "faults", "notebooks", "engines",
    "hosts",
}  # fmt: skip
SHM = Path("/dev/shm")


@pytest.fixture(scope="session", autouse=True)
def session_mark() -> Iterator[None]:
    """Mark what this session starts; have multiprocessing's own helper in place beforehand.

    multiprocessing keeps the file of its shared values for good, once it has made one.
    """
    os.environ[MARK] = uuid.uuid4().hex
    resource_tracker.ensure_running()
    multiprocessing.get_context("spawn").Value("i", 0)
    yield
    del os.environ[MARK]


@dataclass(frozen=True)
class Belongings:
    """What this process holds at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    descriptors: collections.Counter[str]
    shared_files: frozenset[str]

    @classmethod
    def now(cls) -> Belongings:
        return cls(
            processes(), frozenset(threading.enumerate()), descriptors(), frozenset(shared_files())
        )

    @property
    def templates(self) -> frozenset[psutil.Process]:
        return frozenset(p for p in self.processes if name_of(p) in TEMPLATES)


def command(process: psutil.Process) -> str:
    try:
        return f"{process.name()}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return "(gone)"


def name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return "(gone)"


def processes() -> frozenset[psutil.Process]:
    """Those that run, and perhaps some that have ended since the last one was started."""
    newest = Path("/proc/loadavg").read_text().split()[-1]
    if newest != _last_scan[0]:
        _last_scan[:] = newest, scanned()
    found: frozenset[psutil.Process] = _last_scan[1]
    return found


def scanned() -> frozenset[psutil.Process]:
    """Those that descend from this process, or have the mark of this session: orphans."""
    now, mark = time.monotonic(), f"{MARK}={os.environ[MARK]}".encode()
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    family, found = {os.getpid()}, set()
    for pid in pids:
        if now - _others.get(pid, now) < _STRANGE_AFTER and pid != os.getpid():
            if parent_of(pid) in family or mark in environment_of(pid):
                family.add(pid)
                with contextlib.suppress(psutil.Error):
                    found.add(psutil.Process(pid))
            else:
                _others.setdefault(pid, now)
    for pid in _others.keys() - set(pids):
        del _others[pid]
    return frozenset(found)


def environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


_last_scan: list[Any] = ["", frozenset()]
"""The newest pid of this pid namespace (proc_loadavg(5)), and what ``scanned`` found then. Most of
5,000 tests start nothing, and a test needs three scans."""
_others: dict[int, float] = {}
"""When a process was first found not to be ours. After a while it is not looked at again: another
session may run beside this one, and starts processes all the time."""
_STRANGE_AFTER = 5.0
"""Seconds. An orphan may be found between its fork and its exec, which gives it the mark."""


def descriptors() -> collections.Counter[str]:
    """Open descriptors by what they lead to; the inode numbers of pipes and sockets left out."""
    count: collections.Counter[str] = collections.Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        count[re.sub(r":\[\d+\]$", "", target)] += 1
    return count


def shared_files() -> set[str]:
    return set(os.listdir(SHM)) if SHM.is_dir() else set()


def is_foreign(name: str, ours: frozenset[psutil.Process]) -> bool:
    """Whether a process that is not ours uses this shared-memory file (another test session)."""
    try:
        inode = (SHM / name).stat().st_ino
    except OSError:  # gone meanwhile
        return True
    # By inode: sem_open makes a semaphore under another name and links it to this one.
    mapped = re.compile(rf" {inode} +{SHM}/")
    known = {p.pid for p in ours} | {os.getpid()}
    for process in psutil.process_iter():
        if process.pid in known:
            continue
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:
            continue
        if mapped.search(maps):
            return True
    return False


def waits(process: psutil.Process, templates: frozenset[psutil.Process]) -> bool:
    """Whether a template has forked it for the next launch, or an agent keeps it for that."""
    try:
        waiting = process.name() in ("xmp-spare", "xmp-carrier")
        return waiting and process.parent() in templates
    except psutil.Error:
        return False


def of_a_cluster(process: psutil.Process, before: Belongings) -> bool:
    """Whether a node of Ray has started it that was there before: it keeps workers for later."""
    try:
        parent = process.parent()
        return parent in before.processes and parent is not None and parent.name() == "raylet"
    except psutil.Error:
        return False


def left_processes(before: Belongings, templates: frozenset[psutil.Process]) -> list[str]:
    """End what was started since, but for templates and their spares; say what it was."""
    new = processes() - before.processes - templates
    new = {p for p in new if not of_a_cluster(p, before)}
    extra = [(p, command(p)) for p in new if not waits(p, templates)]
    alive, end = [p for p, _ in extra], time.monotonic() + DEADLINE
    while alive and time.monotonic() < end:
        _, alive = psutil.wait_procs(alive, timeout=0.1)
        alive = [p for p in alive if not waits(p, templates)]  # a fork that has its name by now
    lines = [f"process {p.pid} ({status(p)}): {text}" for p, text in extra if p in alive]
    for process in alive:
        try:
            process.kill()
        except psutil.Error:
            pass
    return lines


def status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return "gone by now"


def left_threads(before: Belongings) -> list[str]:
    end = time.monotonic() + DEADLINE
    extra = set(threading.enumerate()) - before.threads
    for thread in extra:
        thread.join(max(0.0, end - time.monotonic()))
    return [f"thread {t.name!r} (daemon={t.daemon})" for t in extra if t.is_alive()]


def left_descriptors(before: Belongings) -> list[str]:
    extra = descriptors() - before.descriptors
    if extra:
        gc.collect()  # a socket in a reference cycle; with torch and JAX loaded, 0.1 s each time
    end = time.monotonic() + DEADLINE
    while extra and time.monotonic() < end:
        extra = descriptors() - before.descriptors  # of a script holder that is on its way out
        time.sleep(0.02)
    return [f"{count} descriptor(s) on {target}" for target, count in extra.items()]


def left_shared_files(before: Belongings) -> list[str]:
    """Files that no process uses: another test session's come and go beside ours."""
    extra = shared_files() - before.shared_files
    if extra:
        gc.collect()  # semaphores in a reference cycle
    end = time.monotonic() + DEADLINE
    while extra and time.monotonic() < end:
        extra = {name for name in extra & shared_files() if not is_foreign(name, processes())}
        time.sleep(0.05)  # nothing reports when a file has gone
    return [f"/dev/shm/{name}" for name in sorted(extra)]


def fail_if(left: list[str], where: str) -> None:
    if left:
        pytest.fail(f"left behind by {where}:\n  " + "\n  ".join(left), pytrace=False)


def end_templates() -> None:
    """``xmp.shutdown()``, when a test of this module has used the engine at all."""
    if "xmp" in sys.modules:
        sys.modules["xmp"].shutdown()


class Kept:
    """The templates that stay for the next module, and what this process had before the first."""

    def __init__(self) -> None:
        self._before: Belongings | None = None
        self._modules: list[str] = []

    def begin(self, module: str) -> None:
        """A module begins that keeps them."""
        if self._before is None:
            self._before, self._modules = Belongings.now(), []
        self._modules.append(module)

    def end(self) -> None:
        """After ``xmp.shutdown()`` not even the templates and their descriptors are there."""
        before, self._before = self._before, None
        if before is not None:
            end_templates()
            left = left_since(before, frozenset())
            fail_if(left, f"the tests of {', '.join(self._modules)} after xmp.shutdown()")


def left_since(before: Belongings, templates: frozenset[psutil.Process]) -> list[str]:
    """Say what is there since; descriptors count where templates neither began nor ended."""
    left = left_processes(before, templates) + left_threads(before) + left_shared_files(before)
    return left + (left_descriptors(before) if templates == before.templates else [])


@pytest.fixture(scope="session")
def kept_templates(session_mark: None) -> Iterator[Kept]:
    """End with the session the templates that stayed from one module to the next."""
    kept = Kept()
    yield kept
    kept.end()


def keeps_templates(request: pytest.FixtureRequest) -> bool:
    """Whether this module leaves its templates to the next one."""
    marked = request.node.get_closest_marker("own_template")
    return (
        bool(frameworks_of(request.path)) and not marked and request.path.parent.name not in ALONE
    )


@pytest.fixture(scope="module", autouse=True)
def nothing_left_by_module(request: pytest.FixtureRequest, kept_templates: Kept) -> Iterator[None]:
    """After a module only a template may be left that the next one keeps.

    Where it has started or ended one, ``Kept.end`` counts its descriptors.
    """
    if keeps_templates(request):
        kept_templates.begin(request.node.name)
        before = Belongings.now()
        yield
        left = left_since(before, Belongings.now().templates)
        fail_if(left, f"the tests of {request.node.name}")
        return
    kept_templates.end()
    before = Belongings.now()
    yield
    end_templates()
    left = left_since(before, frozenset())
    fail_if(left, f"the tests of {request.node.name} after xmp.shutdown()")


@pytest.fixture(autouse=True)
def nothing_left(
    request: pytest.FixtureRequest, nothing_left_by_module: None, clean_environment: None
) -> Iterator[None]:
    """After a test only the template may be left.

    A test that started or ended a template has other descriptors than before because of it: they
    are counted with the module. A test on a stage starts nothing in this process, and the stage
    looks closer at its scripts: here such tests are looked at once for each module.
    """
    if STAGES & set(request.fixturenames):
        yield
        return
    before = Belongings.now()
    yield
    fail_if(left_since(before, Belongings.now().templates), request.node.nodeid)
