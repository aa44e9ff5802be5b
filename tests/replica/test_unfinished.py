"""Files and finalisers that a program leaves open: xmp leaves what ``python script.py`` leaves."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support import unfinished
from tests.support.launching import METHODS, failure, launch, never_returns
from tests.support.stage import Script
from tests.support.unfinished import ENDINGS
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

AT_MODULE_LEVEL = """
import os, sys
import xmp
from tests.support import unfinished

HERE = sys.argv[1]
unfinished.begin(f"{HERE}/{os.getpid()}")
LOG = open(f"{HERE}/log", "a")
LOG.write(f"imported by {os.getpid()}\\n")

def fn(rank):
    LOG.write(f"rank {rank}\\n")
    return os.getpid()

if __name__ == "__main__":
    print(*xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[2]))
"""


NOTHING_LEFT = """
import os, threading
import torch  # its log handlers keep the stream of standard error that Python began with
import xmp

def fn(rank):
    threading.Thread.start = lambda thread: os.write(1, f"{thread.name}\\n".encode())

if __name__ == "__main__":
    xmp.spawn(fn, nprocs=2, runtime="cpu")
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )


@functools.lru_cache
def by_python(how: str) -> dict[str, Any]:
    """The table: what Python leaves of everything that ``unfinished`` begins."""
    with tempfile.TemporaryDirectory() as folder:
        python(unfinished.__file__, folder, how)
        return unfinished.left(Path(folder))


def begins(rank: int, folder: str, how: str) -> None:
    unfinished.begin(f"{folder}/{rank}")
    unfinished.end(how)


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("method", METHODS)
def test_what_a_replica_has_begun_is_finished(method: str, how: str, tmp_path: Path) -> None:
    table = by_python(how)
    assert table["text"] == b"loss,1.0\n", "Python itself must have finished it"
    ends_well = how in ("return", "handler returns")
    # When one replica fails, xmp ends others by SIGTERM: there Python writes nothing, either.
    if ends_well:
        launch(method, begins, str(tmp_path), how)
    else:
        failure(method, begins, str(tmp_path), how, nprocs=1, timeout=60)
    for folder in tmp_path.iterdir():
        assert unfinished.left(folder) == table
    assert len(list(tmp_path.iterdir())) == (2 if ends_well else 1)


@pytest.mark.parametrize("method", METHODS)
def test_what_was_begun_before_the_fork_is_finished_once(method: str, tmp_path: Path) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "left"
    program.write_text(AT_MODULE_LEVEL)
    folder.mkdir()
    done = python(str(program), str(folder), method)
    assert done.returncode == 0, done.stderr
    pids = {path.name for path in folder.iterdir() if path.is_dir()}
    # The holder of the script outlives its launcher for a moment.
    for pid in pids:
        until(lambda pid=pid: unfinished.left(folder / pid) == by_python("return"))
    lines = (folder / "log").read_text().splitlines()
    ranks = [line for line in lines if line.startswith("rank")]
    assert sorted(ranks) == ["rank 0", "rank 1"]
    imports = [line for line in lines if line.startswith("imported")]
    assert sorted(imports) == sorted(f"imported by {pid}" for pid in pids)
    replicas = set(done.stdout.split())
    assert replicas <= pids if method == "spawn" else not replicas & pids


@pytest.mark.parametrize("options", [(), ("--no-python", sys.executable)])
def test_a_script_under_xmp_run_leaves_what_python_leaves(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from tests.support import unfinished\n"
        "unfinished.begin(f'{sys.argv[1]}/' + os.environ['RANK'])\n"
    )
    folder = tmp_path / "left"
    done = python("-m", "xmp", "run", "-n", "2", *options, str(script), str(folder))
    assert done.returncode == 0, done.stderr
    assert [unfinished.left(folder / rank) for rank in "01"] == [by_python("return")] * 2


class Waits:
    """Waits for ever when it is finalised."""

    def __del__(self) -> None:
        threading.Event().wait()


def keeps(rank: int, thing: str) -> int:
    unfinished.kept.append(Waits())
    if thing == "raises":
        raise ValueError("before")
    return rank


def test_a_replica_that_leaves_nothing_starts_no_thread(script: Script) -> None:
    """The watch of finalisers is for those of the program: a thread costs each replica 1 ms."""
    done = script(NOTHING_LEFT)
    assert (done.out, done.err) == ("", "")


CLOSED = """
import gzip, io, sys
import xmp

with gzip.open(sys.argv[1], "wt") as log:
    log.write("imported")
detached = io.TextIOWrapper(io.BytesIO())
detached.detach()

def fn(rank):
    return rank

if __name__ == "__main__":
    print(*xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[2]))
"""


@pytest.mark.parametrize("method", METHODS)
def test_files_that_the_script_has_closed_or_detached(
    script: Script, method: str, tmp_path: Path
) -> None:
    """Their methods raise what they like: a closed gzip file an AttributeError."""
    done = script(CLOSED, str(tmp_path / "log.gz"), method)
    assert (done.out, done.err) == ("0 1\n", "")


def detaches(rank: int) -> int:
    sys.stdout.detach()
    return rank


@pytest.mark.parametrize("method", METHODS)
def test_a_replica_that_detaches_its_standard_output(method: str) -> None:
    assert launch(method, detaches) == [0, 1]


def test_a_finaliser_that_hangs_is_ended_and_named() -> None:
    error = failure("forkserver", keeps, "returns", grace=0.5)
    assert "the finaliser of test_unfinished.Waits" in str(error)
    assert "in __del__, has not ended within 0.5 s (grace)" in str(error)
    assert "ValueError: before" in str(failure("forkserver", keeps, "raises", grace=0.5))


def freezes(rank: int, folder: str) -> None:
    unfinished.begin(f"{folder}/{rank}")
    gc.freeze()
    gc.unfreeze() if rank else None


def test_a_heap_that_the_program_freezes_is_finished_too_without_any_grace(tmp_path: Path) -> None:
    launch("forkserver", freezes, str(tmp_path), grace=0)
    assert [unfinished.left(tmp_path / rank) for rank in "01"] == [by_python("return")] * 2


def fails_beside(rank: int, folder: str, other: str, how: str) -> None:
    unfinished.begin(f"{folder}/{rank}")
    work = threading.Event().wait
    if other == "thread":
        threading.Thread(target=work).start()
    elif other == "pool":
        ThreadPoolExecutor(1).submit(work)
    else:
        multiprocessing.get_context("fork").Process(target=work).start()
    unfinished.end(how)


@pytest.mark.parametrize("other", ["thread", "pool", "child"])
@pytest.mark.parametrize("how", ["raise", "exit"])
def test_what_a_replica_has_begun_that_fails_beside_others(
    other: str, how: str, tmp_path: Path
) -> None:
    """Python would wait for the thread or child for ever; xmp ends it, and finishes the rest.

    Beside threads it leaves generators: one of them may be in the middle of it.
    """
    failure("forkserver", fails_beside, str(tmp_path), other, how, nprocs=1, timeout=60)
    table, found = by_python(how), unfinished.left(tmp_path / "0")
    assert found == (table if other == "child" else {**table, "generator": b"loss,1.0\n"})


def fails_in_a_mesh(rank: int, folder: str, culprit: int) -> None:
    unfinished.kept.append(open(f"{folder}/{rank}", "w"))
    unfinished.kept[-1].write("loss,1.0\n")
    if rank == culprit:
        raise ValueError("boom")
    never_returns()


@pytest.mark.parametrize("culprit", [0, 1])
def test_files_of_a_replica_of_jax_that_fails(culprit: int, tmp_path: Path) -> None:
    """JAX's coordinator outlives the others, but not until SIGKILL."""
    error = failure(
        "forkserver", fails_in_a_mesh, str(tmp_path), culprit, runtime="jax", grace=3
    )  # fmt: skip
    assert str(error).startswith(f"rank {culprit} of 2 ")
    assert (tmp_path / str(culprit)).read_text() == "loss,1.0\n"


def is_interrupted_in_a_mesh(rank: int, folder: str, launcher: int) -> None:
    unfinished.kept.append(open(f"{folder}/{rank}", "w"))
    unfinished.kept[-1].write("loss,1.0\n")
    xmp.barrier()
    if rank == 0:
        os.kill(launcher, signal.SIGINT)
    never_returns()


@pytest.mark.parametrize("grace", [0.5, 12])
def test_files_of_replicas_of_jax_after_ctrl_c(grace: float, tmp_path: Path) -> None:
    """The others end by a signal, and their coordinator when they have ended."""
    with pytest.raises(KeyboardInterrupt):
        launch(
            "forkserver", is_interrupted_in_a_mesh, str(tmp_path), os.getpid(),
            runtime="jax", grace=grace,
        )  # fmt: skip
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["loss,1.0\n"] * 2


def full(rank: int) -> None:
    unfinished.kept.append(open("/dev/full", "w"))
    unfinished.kept[-1].write("loss,1.0\n")


def test_what_cannot_be_written_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    launch("forkserver", full)
    assert "No space left on device" in capfd.readouterr().err


QUEUES = """
import multiprocessing, sys
import xmp

def puts(rank, queue, pipe):
    queue.put(rank)
    pipe.send(rank)

if __name__ == "__main__":
    context = multiprocessing.get_context("fork" if sys.argv[1] == "fork" else "spawn")
    queue, (_, pipe) = context.SimpleQueue(), context.Pipe(False)
    xmp.spawn(puts, (queue, pipe), nprocs=2, runtime="cpu", start_method=sys.argv[1])
    print(sorted(queue.get() for _ in range(2)))
"""


@pytest.mark.parametrize("method", METHODS)
def test_connections_among_the_arguments_are_closed_once(script: Script, method: str) -> None:
    done = script(QUEUES, method)
    assert (done.out, done.err) == ("[0, 1]\n", "")


# --- what multiprocessing's resource tracker removes ----------------------------------------------

WITH_SEMAPHORES = """
import multiprocessing, os, signal, sys
import xmp

def fn(rank):
    semaphore = multiprocessing.get_context("spawn").Semaphore(0)
    print(semaphore._semlock.name, flush=True)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    semaphore.acquire()

if __name__ == "__main__":
    try:
        xmp.spawn(fn, nprocs=2, start_method=sys.argv[1])
    except xmp.ReplicaDied:
        sys.exit(3)
"""


def test_semaphores_of_killed_replicas_are_removed_and_nothing_is_said(
    method: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(WITH_SEMAPHORES)
    done = subprocess.run(
        [sys.executable, script, method], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (3, "")
    names = done.stdout.split()
    assert names
    assert [name for name in names if os.path.exists(f"/dev/shm/sem.{name[1:]}")] == []
