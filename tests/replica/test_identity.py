"""A replica is a child of multiprocessing, and ends as a process does."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import util
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import xmp
from tests.support.launching import launch, never_returns
from tests.support.stage import Script
from tests.support.waiting import until


def identity(rank: int) -> dict[str, Any]:
    current = multiprocessing.current_process()
    parent = multiprocessing.parent_process()
    assert parent is not None
    return {
        "name": current.name,
        "pid": current.pid == os.getpid() == current.ident,
        "daemon": current.daemon,
        "parent": parent.pid,
        "parent_alive": parent.is_alive(),
        "authkey": bytes(current.authkey),
        "main": threading.current_thread() is threading.main_thread(),
        "threads": threading.active_count(),
        "children": multiprocessing.active_children(),
        "group": os.getpgid(0) == os.getpid(),
    }


def test_the_identity_of_a_replica_in_multiprocessing(method: str) -> None:
    got = list(launch(method, identity, nprocs=3))
    assert len({each["name"] for each in got}) == 3
    assert "MainProcess" not in {each["name"] for each in got}
    for each in got:
        assert each["pid"]
        assert each["parent"] == os.getpid()
        assert each["parent_alive"]
        assert each["authkey"] == bytes(multiprocessing.current_process().authkey)
        assert each["main"]
        # Where the kernel cannot watch the supervisor for a replica, a thread does.
        assert each["threads"] <= 1 + bool(os.environ.get("XMP_WITHOUT"))
        assert each["children"] == []
        assert each["group"]


def child(queue: Any, value: Any) -> None:
    queue.put(value)


def has_children(rank: int, daemon: bool) -> Any:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue, rank), daemon=daemon)
    process.start()
    got = queue.get()
    process.join()
    with context.Pool(2) as pool:
        squares = pool.map(abs, [-1, -2, rank])
    other = multiprocessing.get_context("spawn")
    process = other.Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    return got, process.exitcode, squares


@pytest.mark.parametrize("daemon", [False, True])
def test_a_replica_may_have_children(method: str, daemon: bool) -> None:
    context = launch(method, has_children, True, join=False, daemon=daemon)
    assert list(context.results()) == [(rank, 0, [1, 2, rank]) for rank in range(2)]


@pytest.mark.parametrize(
    "session", [False, pytest.param(True, marks=pytest.mark.subreaper)], ids=["group", "session"]
)
def test_children_that_a_replica_leaves_are_ended(method: str, session: bool) -> None:
    def fn(rank: int) -> int:
        return subprocess.Popen(["sleep", "600"], start_new_session=session).pid

    for pid in launch(method, fn):
        until(lambda pid=pid: status(pid) == "Z")


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


# --- the end -----------------------------------------------------------------------------------


def test_exit_handlers_of_a_replica_run_and_those_of_the_launcher_do_not(
    method: str, tmp_path: Path
) -> None:
    def note(text: str) -> None:
        with open(tmp_path / "notes", "a") as notes:
            notes.write(f"{text}\n")

    def fn(rank: int) -> None:
        atexit.register(note, f"atexit {rank}")
        util.Finalize(None, note, args=(f"finalize {rank}",), exitpriority=10)

    atexit.register(note, "launcher")
    launcher = util.Finalize(None, note, args=("launcher finalize",), exitpriority=10)
    try:
        launch(method, fn)
    finally:
        atexit.unregister(note)
        launcher.cancel()
    notes = sorted((tmp_path / "notes").read_text().splitlines())
    assert notes == ["atexit 0", "atexit 1", "finalize 0", "finalize 1"]


def test_exit_handlers_run_when_a_replica_raises_or_exits(method: str, tmp_path: Path) -> None:
    def fn(rank: int) -> None:
        def note() -> None:
            with open(tmp_path / "notes", "a") as notes:
                notes.write("x")

        atexit.register(note)
        if rank == 0:
            sys.exit(0)
        raise ValueError

    with pytest.raises(xmp.ReplicaRaised):
        launch(method, fn)
    assert "x" in (tmp_path / "notes").read_text()


def test_an_exit_handler_that_raises_or_prints(
    method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def fn(rank: int) -> int:
        atexit.register(lambda: print(f"last words of {rank}"))
        atexit.register([].pop)
        return rank

    assert list(launch(method, fn)) == [0, 1]
    got = capfd.readouterr()
    assert "last words of 0" in got.out
    assert "last words of 1" in got.out
    if method != "fork":  # which inherits pytest's collector of such errors
        assert "IndexError" in got.err


def runs(code: CodeType | None) -> bool:
    """Whether the main thread is in this function."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def test_threads_of_a_replica_are_joined(method: str, tmp_path: Path) -> None:
    def fn(rank: int) -> int:
        def later() -> None:
            while runs(code):
                time.sleep(0.001)
            (tmp_path / str(rank)).touch()

        code = sys._getframe().f_code
        threading.Thread(target=later).start()
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        return rank

    assert list(launch(method, fn)) == [0, 1]
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


def test_an_executor_left_open_is_finished(method: str, tmp_path: Path) -> None:
    def fn(rank: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        def work() -> None:
            while runs(code):
                time.sleep(0.001)
            (tmp_path / str(rank)).touch()

        code = sys._getframe().f_code
        ThreadPoolExecutor(1).submit(work)

    launch(method, fn)
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


class Packed(int):
    """A number that says, through a pipe, when it is pickled: after the function has returned."""

    def __new__(cls, number: int, pipe: int) -> Packed:
        self = super().__new__(cls, number)
        self.pipe = pipe
        return self

    pipe: int

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        os.write(self.pipe, b"x")
        return int, (int(self),)


def test_children_of_a_replica_are_joined_or_ended(method: str, tmp_path: Path) -> None:
    """As multiprocessing does: daemons are terminated, others waited for."""

    def fn(rank: int) -> int:
        context = multiprocessing.get_context("fork")

        reads, writes = os.pipe()

        def later() -> None:
            os.close(writes)
            os.read(reads, 1)  # until the function has returned
            (tmp_path / str(rank)).touch()

        context.Process(target=later).start()
        daemon = context.Process(target=time.sleep, args=(600,), daemon=True)
        daemon.start()
        return Packed(daemon.pid or 0, writes)

    pids = list(launch(method, fn))
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]
    assert all(status(pid) == "Z" or not os.path.exists(f"/proc/{pid}") for pid in pids)


def joins_a_child(rank: int, folder: Path, launcher: int) -> None:
    reads, writes = os.pipe()

    def work() -> None:
        try:
            os.write(writes, b"x")
            never_returns()
        finally:
            (folder / str(rank)).touch()

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    os.read(reads, 1)
    xmp.barrier()
    if rank == 0:
        os.kill(launcher, signal.SIGINT)
    child.join()


def test_children_of_a_replica_get_the_ctrl_c_of_a_terminal(tmp_path: Path) -> None:
    """Otherwise their replicas would wait for them until ``grace`` is over."""
    with pytest.raises(KeyboardInterrupt):
        launch("forkserver", joins_a_child, tmp_path, os.getpid(), grace=600)
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


FOLDER = """
import json, os, sys, tempfile, time
import xmp

FOLDER = tempfile.TemporaryDirectory(prefix="ebt-")

def other_is_gone():
    number = open(sys.argv[2]).read() if os.path.exists(sys.argv[2]) else ""
    return number and not os.path.exists(f"/proc/{number}")

def fn(rank):
    if rank == 0:
        with open(sys.argv[2], "w") as file:
            file.write(str(os.getpid()))
    open(os.path.join(FOLDER.name, f"made by {rank}"), "w").close()
    if rank == 1:
        end = time.monotonic() + 20
        while not other_is_gone():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert os.path.isdir(FOLDER.name)
    return FOLDER.name

if __name__ == "__main__":
    got = list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1]))
    xmp.shutdown()  # ends the process that has imported this script for its replicas, if any
    left = [os.path.isdir(name) for name in got]
    print(json.dumps([len(set(got)), left, FOLDER.name in got, os.path.isdir(FOLDER.name)]))
"""


def test_a_temporary_folder_of_the_script_lives_as_long_as_the_last_replica(
    method: str, script: Script, tmp_path: Path
) -> None:
    done = script(FOLDER, method, str(tmp_path / "first"))
    folders, left, own, here = done.json()
    assert here, "the launcher's own folder"
    assert "Error" not in done.err
    assert own == (method == "fork")
    if method == "fork":
        assert left == [True, True]
    else:
        assert left == [False, False]
        assert folders == (1 if method == "forkserver" else 2)


COVERED = """
import sys
import xmp

def fn(rank):
    value = 1
    if rank == 0:
        value += 1
    return value

if __name__ == "__main__":
    assert list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])) == [2, 1]
"""


def coverage(folder: Path, *arguments: str) -> None:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    command = [sys.executable, "-m", "coverage", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=plain, timeout=25, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_coverage_records_the_function(method: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COVERED)
    (tmp_path / ".coveragerc").write_text("[run]\nsource = .\npatch = subprocess\n")
    coverage(tmp_path, "run", "--parallel-mode", "train.py", method)
    coverage(tmp_path, "combine", "-q")
    coverage(tmp_path, "json", "-q", "-o", "out.json", "--include=train.py")
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["files"]["train.py"]["missing_lines"] == []
