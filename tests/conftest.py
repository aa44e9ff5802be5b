"""Every test starts in a clean environment and leaves nothing behind.

What is looked for afterwards: processes (children, and any process that carries this session's
mark in its environment, so orphans too), Python threads, descriptors by kind, files in /dev/shm.
The template process of xmp may stay from one test to the next; it is ended with each module.
"""

from __future__ import annotations

import collections
import faulthandler
import gc
import os
import re
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

from xmp._runtimes._base import matches
from xmp._runtimes._variables import REPORTED

MARK = "XMP_TEST_SESSION"
TIME_LIMIT = 180  # seconds for one test; three times that for one marked slow
DEADLINE = 3.0  # seconds that something which is on its way out may take
# The process names of what may stay until xmp.preload(None); its forks have its command line.
TEMPLATES = {"xmp-template", "xmp-script"}
SHM = Path("/dev/shm")

# What tells a process about launchers and devices: all that a report of a host shows, and all of
# the launchers' own.
READ = (*REPORTED, "SLURM_*", "OMPI_*", "PMI_*", "PMIX_*", "KUBERNETES_*")


@pytest.fixture(scope="session", autouse=True)
def session_mark() -> Iterator[None]:
    """Mark what this session starts; have multiprocessing's own helper in place beforehand."""
    os.environ[MARK] = uuid.uuid4().hex
    resource_tracker.ensure_running()
    yield
    del os.environ[MARK]


@pytest.fixture(autouse=True)
def clean_environment(session_mark: None) -> Iterator[None]:
    """Take away what launchers and runtimes read; put the environment back afterwards."""
    saved = dict(os.environ)
    for name in saved:
        if name != MARK and matches(name, READ):
            del os.environ[name]
    yield
    for name in set(os.environ) - set(saved):
        del os.environ[name]
    os.environ.update(saved)


@pytest.fixture(autouse=True)
def time_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that hangs, with all stacks.

    By a signal: pytest's faulthandler_timeout is a native thread, and ``fork`` is refused where
    one is up.
    """

    limit = TIME_LIMIT * (3 if request.node.get_closest_marker("slow") else 1)

    def over(*_: object) -> None:
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        pytest.fail(f"not done within {limit} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(limit)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


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


def carries_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.pid != os.getpid()
    except (psutil.Error, OSError):
        return False


def processes() -> frozenset[psutil.Process]:
    mine = set(psutil.Process().children(recursive=True))
    return frozenset(mine | {p for p in psutil.process_iter() if carries_mark(p, os.environ[MARK])})


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
    """Whether it is what a template has forked for the next launch."""
    try:
        return process.name() == "xmp-spare" and process.parent() in templates
    except psutil.Error:
        return False


def left_processes(before: Belongings, templates: frozenset[psutil.Process]) -> list[str]:
    """End what was started since, but for templates and their spares; say what it was."""
    new = processes() - before.processes - templates
    extra = [(p, command(p)) for p in new if not waits(p, templates)]
    _, alive = psutil.wait_procs([p for p, _ in extra], timeout=DEADLINE)
    alive = [p for p in alive if not waits(p, templates)]
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
        extra = descriptors() - before.descriptors
    return [f"{count} descriptor(s) on {target}" for target, count in extra.items()]


def left_shared_files(before: Belongings) -> list[str]:
    """Files that nobody uses: another test session's come and go beside ours."""
    extra = shared_files() - before.shared_files
    if extra:
        gc.collect()  # semaphores in a reference cycle
    end = time.monotonic() + DEADLINE
    while extra and time.monotonic() < end:
        extra = {name for name in extra & shared_files() if not is_foreign(name, processes())}
        time.sleep(0.05)  # nothing tells when a file has gone
    return [f"/dev/shm/{name}" for name in sorted(extra)]


def fail_if(left: list[str], where: str) -> None:
    if left:
        pytest.fail(f"left behind by {where}:\n  " + "\n  ".join(left), pytrace=False)


def end_templates() -> None:
    """``xmp.preload(None)``, when a test of this module has used the engine at all."""
    if "xmp" in sys.modules:
        sys.modules["xmp"].preload(None)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_by_module(request: pytest.FixtureRequest, session_mark: None) -> Iterator[None]:
    """After ``xmp.preload(None)`` not even the template and its descriptors are there."""
    before = Belongings.now()
    yield
    end_templates()
    left = left_processes(before, frozenset())
    left += left_threads(before) + left_descriptors(before) + left_shared_files(before)
    fail_if(left, f"the tests of {request.node.name} after xmp.preload(None)")


@pytest.fixture(autouse=True)
def nothing_left(
    request: pytest.FixtureRequest, nothing_left_by_module: None, clean_environment: None
) -> Iterator[None]:
    """After a test only the template may be left.

    A test that started or ended a template has other descriptors than before because of it: they
    are counted with the module.
    """
    before = Belongings.now()
    yield
    templates = Belongings.now().templates
    left = left_processes(before, templates) + left_threads(before) + left_shared_files(before)
    if templates == before.templates:
        left += left_descriptors(before)
    fail_if(left, request.node.nodeid)


def can_make_network_namespaces() -> bool:
    """Tried in a child: entering a namespace cannot be undone."""
    pid = os.fork()
    if pid == 0:
        import ctypes

        os._exit(ctypes.CDLL(None).unshare(0x40000000) != 0)  # CLONE_NEWNET
    return os.waitpid(pid, 0)[1] == 0


ABILITIES = {
    "gpu": (lambda: Path("/dev/nvidiactl").exists(), "this host has no CUDA device"),
    "root": (lambda: os.geteuid() == 0, "needs to be root"),
    "netns": (can_make_network_namespaces, "the kernel refuses network namespaces here"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this host cannot do; a missing installation is never a reason."""
    wanted = {m.name for item in items for m in item.iter_markers()} & ABILITIES.keys()
    for name in wanted:
        able, reason = ABILITIES[name]
        if not able():
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=reason))
