"""What is reported of a replica that died: what killed it, and where it crashed."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import failure, never_returns
from tests.support.memory_group import memory_group
from tests.support.stage import Script
from tests.support.waiting import until
from xmp._os.probe import resources
from xmp._processes.messages.order import Failure
from xmp._processes.report import replica_error
from xmp._processes.report.out_of_memory import OomFinding

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]
GIB = 1 << 30


# --- the cause of a kill ------------------------------------------------------------------------


def is_killed(rank: int, code: int) -> None:
    if rank == 1:
        if code:
            os._exit(code)
        os.kill(os.getpid(), signal.SIGKILL)
    never_returns()


def test_a_kill_from_outside_is_not_taken_for_lack_of_memory(method: str) -> None:
    error = failure(method, is_killed, 0)
    assert "was killed by SIGKILL (not by xmp, and memory did not run out) [XMP-R05]\n" in str(
        error
    )
    assert "\n\nThe kernel counted no out-of-memory kill in this memory control group" in str(error)


def test_a_shells_code_for_a_killed_program_is_looked_into() -> None:
    error = failure("forkserver", is_killed, 137)
    assert "137 is a shell's exit code for a program that SIGKILL ended." in str(error)
    assert "counted no out-of-memory kill" in str(error)
    assert "If a shell passed this code on" in str(error)
    assert "So a process sent the signal" not in str(error)


def test_a_replica_that_xmp_stopped_was_not_killed_from_outside(tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"

    def fn(rank: int) -> None:
        if rank == 1:
            until(deaf.exists)
            raise ValueError("x")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deaf.touch()
        never_returns()

    error = failure("forkserver", fn, grace=0.1)
    assert error.failures[1].signal_name == "SIGKILL"
    text = str(error).replace(Path(__file__).name, "this file")
    assert "outside" not in text
    assert "memory" not in text


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory control group without a limit."""
    with memory_group() as made:
        yield made


EATS = """
import os, signal, sys
from pathlib import Path
import xmp

def fn(rank, group):
    if rank != 1:
        return rank
    v1 = group / "memory.limit_in_bytes"
    if v1.exists():
        limit, used, swap = v1, "memory.usage_in_bytes", "memory.memsw.limit_in_bytes"
    else:
        limit, used, swap = group / "memory.max", "memory.current", "memory.swap.max"
    most = str(int((group / used).read_text()) + (64 << 20))
    limit.write_text(most)
    if (group / swap).exists():
        (group / swap).write_text(most if v1.exists() else "0")
    eaten = []
    if sys.argv[2] == "itself":
        while True:
            eaten.append(bytearray(os.urandom(1 << 20)))
    child = os.fork()
    if child == 0:
        Path("/proc/self/oom_score_adj").write_text("1000")
        while True:
            eaten.append(bytearray(os.urandom(1 << 20)))
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        xmp.heartbeat()
    status = os.waitpid(child, 0)[1]
    while sys.argv[2] == "for ever":
        signal.pause()
    raise RuntimeError(f"helper ended with {status}")

if __name__ == "__main__":
    group = Path(sys.argv[1])
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        limit = {"hang_timeout": 1} if sys.argv[2] == "for ever" else {}
        xmp.spawn(fn, (group,), nprocs=2, runtime="cpu", **limit)
    except xmp.ReplicaError as error:
        print(error)
"""


@pytest.mark.root
def test_lack_of_memory_is_reported_with_numbers(script: Script, group: Path) -> None:
    done = script(EATS, str(group), "itself")
    first, *rest = done.out.splitlines()
    assert first.endswith("was killed by SIGKILL (out of memory) [XMP-R04]"), done
    line = next(line for line in rest if line.startswith("Out of memory: "))
    assert ", 2 replicas, largest " in line
    assert line.endswith(" (rank 1).")
    assert "The kernel counted one out-of-memory kill in this memory control group" in done.out


@pytest.mark.root
def test_a_helpers_lack_of_memory_is_reported_for_the_replica_that_raised(
    script: Script, group: Path
) -> None:
    done = script(EATS, str(group), "helper")
    assert "raised RuntimeError: helper ended with 9" in done.out.splitlines()[0], done
    assert "\n\nA process was killed for lack of memory: limit " in done.out


@pytest.mark.root
def test_a_helpers_lack_of_memory_is_reported_for_those_that_wait(
    script: Script, group: Path
) -> None:
    done = script(EATS, str(group), "for ever")
    assert done.out.startswith("hang_timeout=1: rank 0 had finished while rank 1 of 2 "), done
    assert "\n\nA process was killed for lack of memory: limit " in done.out


def killed(**known: Any) -> Failure:
    return Failure(3, 3, 17, "signal", "cause", signal_name="SIGKILL", **known)


def found(before: resources.Counted | None, after: resources.Counted | None) -> tuple[str, str]:
    sizes = {rank: (rank + 1) * 500 << 20 for rank in range(4)}
    memory = OomFinding(before, after, resources.Bound(13 * GIB, True), sizes)
    return memory.why(killed()), memory.found(True)


def test_what_was_counted_decides() -> None:
    one = resources.Counted(3, 12 * GIB), resources.Counted(4, 13 * GIB)
    why, text = found(*one)
    assert why == "out of memory"
    assert text == (
        "Out of memory: limit 13.0 GiB, peak 13.0 GiB, 4 replicas, largest 2.0 GiB (rank 3).\n"
        "The kernel counted one out-of-memory kill in this memory control group during the launch."
        "\nUse less memory in each replica, start fewer replicas, or raise the limit."
    )
    assert found(one[0], one[0])[0] == "not by xmp, and memory did not run out"
    assert found(None, one[0])[0] == "reason unknown"
    assert "cannot say whether memory ran out" in found(None, None)[1]


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ("K K K", 2),  # the largest, though the smallest one's end was seen first
        ("K K -", 1),
        ("K - K", 2),
        ("K - -", 0),
        ("- K K", 0),  # what was seen first is no kill
        ("K x K", 2),
        ("K s s", 0),  # xmp has ended the others
    ],
)
def test_of_replicas_without_memory_the_largest_is_the_cause(ends: str, first: int) -> None:
    one = resources.Counted(3, 12 * GIB), resources.Counted(5, 13 * GIB)
    memory = OomFinding(*one, None, {rank: (rank + 1) << 20 for rank in range(3)})
    failures = [ended(rank, how) for rank, how in enumerate(ends.split())]
    failures[0].label = "cause"
    ordered = memory.largest_first(failures)
    assert [each.rank for each in ordered] == [first, *({0, 1, 2} - {first})]
    assert [each.label == "cause" for each in ordered] == [True, False, False]


def ended(rank: int, how: str) -> Failure:
    label = "stopped by xmp" if how == "s" else "unknown"
    if how in "Ks":
        return Failure(rank, rank, 4711, "signal", label, signal_name="SIGKILL")
    return Failure(rank, rank, 4711, "exit", label, exit_code=1)


def test_a_count_of_the_whole_machine_proves_only_that_there_was_none() -> None:
    before, after = resources.Counted(3, everywhere=True), resources.Counted(5, everywhere=True)
    assert found(before, before)[0] == "not by xmp, and memory did not run out"
    assert found(before, after)[0] == "reason unknown"
    assert "2 out-of-memory kills in the whole machine" in found(before, after)[1]
    assert found(before, resources.Counted(4)) == found(None, None)


GROUPS = {
    "0::/pod\n": {
        "sys/fs/cgroup/pod/memory.events": "low 0\nmax 9\noom 2\noom_kill 2\n",
        "sys/fs/cgroup/pod/memory.peak": "4096\n",
    },
    "4:memory:/pod\n0::/\n": {
        "sys/fs/cgroup/memory/pod/memory.oom_control": "under_oom 0\noom_kill 2\n",
        "sys/fs/cgroup/memory/pod/memory.max_usage_in_bytes": "4096\n",
    },
    # Inside a container the path is the host's and the mount is the group itself.
    "4:memory:/docker/0123\n": {
        "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 2\n",
        "sys/fs/cgroup/memory/memory.max_usage_in_bytes": "4096\n",
    },
}


@pytest.mark.parametrize("line", GROUPS)
def test_both_versions_of_control_groups_are_read(line: str, tmp_path: Path) -> None:
    files = {"proc/self/cgroup": line, "proc/vmstat": "oom_kill 77\n", **GROUPS[line]}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert resources.count(tmp_path) == resources.Counted(2, 4096)


def test_without_a_control_group_the_machine_counts(tmp_path: Path) -> None:
    assert resources.count(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 1\noom_kill 7\n")
    assert resources.count(tmp_path) == resources.Counted(7, everywhere=True)


# --- where it crashed ---------------------------------------------------------------------------


def null_pointer() -> None:
    ctypes.string_at(0)


def past_the_end_of_a_file() -> None:
    with open("/proc/self/exe", "rb") as source, tempfile.TemporaryFile() as file:
        file.write(source.read(mmap.PAGESIZE))
        file.flush()
        view = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        view[0]


def no_instruction() -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\x0f\x0b" * 8)  # ud2
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ctypes.CFUNCTYPE(None)(address)()


CRASHES = {
    "string_at": (null_pointer, "SIGSEGV", "Segmentation fault"),
    "stack overflow": (faulthandler._stack_overflow, "SIGSEGV", "Segmentation fault"),
    "abort": (os.abort, "SIGABRT", "Aborted"),
    "fatal error": (faulthandler._fatal_error_c_thread, "SIGABRT", ""),
    "file too short": (past_the_end_of_a_file, "SIGBUS", "Bus error"),
    "division": (faulthandler._sigfpe, "SIGFPE", "Floating"),
    "instruction": (no_instruction, "SIGILL", "Illegal instruction"),
}


def crashes_here(rank: int, kind: str, thread: bool) -> None:
    if rank == 1:
        crash, _, _ = CRASHES[kind]
        if thread:
            threading.Thread(target=crash, name="loader").start()
        else:
            crash()
    never_returns()


@pytest.mark.parametrize("kind", CRASHES)
def test_a_native_crash_shows_the_python_stack(method: str, kind: str) -> None:
    _, name, words = CRASHES[kind]
    error = failure(method, crashes_here, kind, False)
    assert isinstance(error, xmp.ReplicaDied)
    assert (error.rank, error.signal_name) == (1, name)
    stacks = str(error).partition("Its Python stacks:\n")[2]
    assert words in stacks
    assert "in crashes_here" in stacks
    assert f"{os.sep}_processes{os.sep}" not in str(error)
    text = error.failures[0].stacks + error.failures[0].stderr
    assert f"{os.sep}_processes{os.sep}" in text, "all of it is kept"


@pytest.mark.parametrize("kind", ["string_at", "abort", "division"])
def test_a_crash_in_a_thread_shows_all_threads(kind: str) -> None:
    error = failure("forkserver", crashes_here, kind, True)
    stacks = str(error).partition("Its Python stacks:\n")[2]
    crashed, _, waiting = stacks.partition("\n\nThread 0x")
    assert "Current thread 0x" in crashed
    assert "in run" in crashed
    assert "in crashes_here" in waiting
    assert f"{os.sep}_processes{os.sep}" not in str(error)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"])
def test_a_crash_by_a_signal_shows_the_python_stack(name: str) -> None:
    def fn(rank: int) -> None:
        os.kill(os.getpid(), getattr(signal, name))
        never_returns()

    error = failure("forkserver", fn, nprocs=1)
    assert error.signal_name == name
    assert " in fn" in str(error).partition("Its Python stacks:\n")[2]


# --- exit codes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (17, "17 is legacy torch_xla's exit code for a replica whose function raised."),
        (134, "134 is a shell's exit code for a program that SIGABRT ended."),
        (139, "139 is a shell's exit code for a program that SIGSEGV ended."),
        (143, "143 is a shell's exit code for a program that SIGTERM ended."),
        (128, ""),
        (255, ""),
        (3, ""),
    ],
)
def test_known_exit_codes_have_a_hint(code: int, hint: str) -> None:
    assert replica_error._hint(code) == hint


def test_the_hint_is_in_the_text() -> None:
    text = str(failure("forkserver", is_killed, 134))
    assert "\n\n134 is a shell's exit code for a program that SIGABRT ended.\n\n" in text
    assert text.endswith("\n\nprocess 1 terminated with exit code 134")


def ends_as_libtpu_does(rank: int) -> None:
    if rank == 1:
        os.write(2, b"F0101 12:00:00 tpu.cc:99] Bad TPU_CHIPS_PER_PROCESS_BOUNDS: 3,1,1\n")
        os._exit(1)
    never_returns()


def test_a_library_that_ends_the_process_is_quoted(method: str) -> None:
    error = failure(method, ends_as_libtpu_does)
    assert error.exit_code == 1
    assert str(error).endswith(
        "Its last lines on standard error:\n"
        "F0101 12:00:00 tpu.cc:99] Bad TPU_CHIPS_PER_PROCESS_BOUNDS: 3,1,1\n\n"
        "process 1 terminated with exit code 1"
    )


def test_a_silent_end_says_where_to_look() -> None:
    error = failure("forkserver", is_killed, 3)
    assert str(error).endswith(
        "\n\nIt wrote nothing on standard error. "
        "Look for sys.exit and os._exit in the code that it runs.\n\n"
        "process 1 terminated with exit code 3"
    )
