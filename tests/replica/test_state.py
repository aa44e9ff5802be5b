"""What replicas take from the launcher at each call, and how the launcher is afterwards."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import METHODS, launch, state
from tests.support.stage import Script

pytestmark = pytest.mark.each_method


def test_the_state_of_this_call_not_of_the_first(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template, if there is one, was started in another state."""
    launch(method, state)
    umask = os.umask(0o027)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    cpus = os.sched_getaffinity(0)
    handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path / "more"))
        monkeypatch.setattr(sys, "argv", ["prog", "--x", "ü"])
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit[0] // 2, limit[1]))
        os.sched_setaffinity(0, {min(cpus)})
        here = state(0)
        for got in launch(method, state):
            assert got == here
            assert got["umask"] == 0o027
            assert got["cpus"] == [min(cpus)]
            assert got["usr1"]
            assert got["blocked"] == [signal.SIGUSR2]
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        os.sched_setaffinity(0, cpus)
        signal.signal(signal.SIGUSR1, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    here = state(0)
    for got in launch(method, state):
        assert got == here, "and back again"


def test_a_default_signal_stays_default(method: str) -> None:
    """Python ignores SIGPIPE and handles SIGINT; a replica has what its launcher has."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        here = state(0)
        assert [got["pipe"] for got in launch(method, state)] == [here["pipe"]] * 2
    finally:
        signal.signal(signal.SIGPIPE, before)


NICE = """
import os, sys
import xmp

def fn(rank):
    return os.getpriority(os.PRIO_PROCESS, 0)

if __name__ == "__main__":
    def go():
        return list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1]))
    print(go())
    os.nice(5)
    print(go())
"""


def test_niceness(method: str, script: Script) -> None:
    now = os.getpriority(os.PRIO_PROCESS, 0)
    assert script(NICE, method).out == f"[{now}, {now}]\n[{now + 5}, {now + 5}]\n"


def variables(rank: int) -> dict[str, str]:
    return dict(os.environ)


def test_the_environment_of_this_call(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(method, variables)
    monkeypatch.setenv("EBT_NEW", "1 = ü\nsecond line")
    monkeypatch.setenv("EBT_EMPTY", "")
    monkeypatch.setenv("HOME", "/elsewhere")
    monkeypatch.delenv("PATH")
    for rank, got in enumerate(launch(method, variables)):
        assert got["EBT_NEW"] == "1 = ü\nsecond line"
        assert got["EBT_EMPTY"] == ""
        assert got["HOME"] == "/elsewhere"
        assert "PATH" not in got
        assert got["RANK"] == got["LOCAL_RANK"] == str(rank)
        assert got["WORLD_SIZE"] == "2"
    monkeypatch.delenv("EBT_NEW")
    assert "EBT_NEW" not in launch(method, variables)[0]


def test_the_environment_reaches_native_code_and_children(method: str) -> None:
    def fn(rank: int) -> Any:
        import ctypes

        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        child = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
        return getenv(b"LOCAL_RANK"), f"LOCAL_RANK={rank}\n" in child

    assert list(launch(method, fn)) == [(b"0", True), (b"1", True)]


def test_extra_variables(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBT_A", "inherited")
    for got in launch(method, variables, env={"EBT_A": "asked", "OMP_NUM_THREADS": "3"}):
        assert (got["EBT_A"], got["OMP_NUM_THREADS"]) == ("asked", "3")
    each = launch(method, variables, env=lambda local_rank: {"EBT_A": f"of {local_rank}"})
    assert [got["EBT_A"] for got in each] == ["of 0", "of 1"]
    assert os.environ["EBT_A"] == "inherited"


def speaks(rank: int, text: str) -> None:
    print(f"out {text} {rank}")
    print(f"err {text} {rank}", file=sys.stderr)
    os.write(1, f"raw {text} {rank}\n".encode())


def test_descriptors_swapped_between_launches(method: str, tmp_path: Path) -> None:
    """pytest and notebooks do that; the template still has the old ones."""
    launch(method, speaks, "first")
    saved = os.dup(1), os.dup(2)
    with open(tmp_path / "out", "w+") as out, open(tmp_path / "err", "w+") as err:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            launch(method, speaks, "second")
        finally:
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            os.close(saved[0])
            os.close(saved[1])
        got = (tmp_path / "out").read_text().splitlines()
        assert sorted(got) == sorted(f"{k} second {r}" for k in ("out", "raw") for r in (0, 1))
        assert sorted((tmp_path / "err").read_text().splitlines()) == [
            "err second 0",
            "err second 1",
        ]


def test_output_is_flushed_and_in_order(method: str, script: Script) -> None:
    done = script(
        """
import sys
import xmp

def fn(rank):
    for index in range(2000):
        sys.stdout.write(f"{rank} {index}\\n")
        sys.stderr.write(f"{rank} {index}\\n")
    sys.stdout.write(f"{rank} last without newline,")
    if rank == 1:
        raise SystemExit(0)

if __name__ == "__main__":
    print("before", end=" ")
    xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])
    print("after")
""",
        method,
    )
    assert done.code == 0, done.err
    assert done.out.endswith("after\n")
    assert done.out.count("before") == 1, "a fork must not write what its parent had buffered"
    for rank in (0, 1):
        lines = [line for line in done.err.splitlines() if line.startswith(f"{rank} ")]
        assert lines == [f"{rank} {index}" for index in range(2000)]
        assert f"{rank} last without newline," in done.out
        numbers = [
            int(line.split()[1])
            for line in done.out.replace(",", "\n").splitlines()
            if line.startswith(f"{rank} ") and line.split()[1].isdigit()
        ]
        assert len(numbers) >= 1998
        assert numbers == sorted(numbers)


def test_standard_input_is_empty(method: str, script: Script) -> None:
    done = script(
        """
import os, sys
import xmp

def fn(rank):
    return sys.stdin.read(), os.read(0, 10)

if __name__ == "__main__":
    print(list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
    print(sys.stdin.read())
""",
        method,
        stdin="for the launcher",
    )
    assert done.out == "[('', b''), ('', b'')]\nfor the launcher\n", done


def test_a_launcher_with_blocked_signals(method: str, script: Script) -> None:
    """A blocked SIGTERM or SIGCHLD must not make a failure wait for the grace."""
    done = script(
        """
import signal, sys, time
import xmp

def fn(rank):
    if rank == 1:
        raise ValueError
    while True:
        signal.pause()

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGUSR1])
    try:
        xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1], grace=600)
    except xmp.ReplicaRaised as error:
        print(error.failures[1].signal_name)
""",
        method,
    )
    assert done.out == "SIGTERM\n", done


CLOSED = """
import os, sys
import xmp

def fn(rank):
    print("said by a replica")
    os.stat(os.devnull)
    return rank, sys.stdin.read()

if __name__ == "__main__":
    got = xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])
    os.write(int(sys.argv[2]), repr(list(got)).encode())
"""


SOME = ("<&-", ">&-", "<&- >&-", "2>&-")


@pytest.mark.parametrize(
    ("method", "closed"),
    [*((METHODS[0], each) for each in SOME), *((each, "<&- >&- 2>&-") for each in METHODS)],
)
def test_a_launcher_without_standard_streams(
    method: str, script: Script, tmp_path: Path, closed: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(CLOSED)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, str(path), method]
    subprocess.run(
        [*command, str(writer)],
        pass_fds=[writer],
        check=False,
        timeout=25,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    with open(reader, "rb") as got:
        assert got.read() == b"[(0, ''), (1, '')]"


def test_a_launcher_that_ignores_its_children(method: str, script: Script) -> None:
    done = script(
        """
import os, signal, sys
import xmp

def fn(rank, code):
    import subprocess
    assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3  # a proper wait in a replica
    if rank == 1 and code:
        os._exit(code)
    return rank

if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(list(xmp.spawn(fn, (0,), nprocs=2, runtime="cpu", start_method=sys.argv[1])))
    try:
        xmp.spawn(fn, (7,), nprocs=2, runtime="cpu", start_method=sys.argv[1])
    except xmp.ReplicaDied as error:
        print(error.exit_code)
    print(signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)
""",
        method,
    )
    assert done.out == "[0, 1]\n7\nTrue\n", done
