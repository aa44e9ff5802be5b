"""Where the replicas of a running launch are: asked for in the launcher."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import xmp
from tests.support.launching import launch, never_returns
from tests.support.waiting import until
from xmp._processes.system import stacks_by_pid
from xmp._processes.system.processes import signal_name
from xmp._processes.system.stack_dump import DUMP_SIGNAL

pytestmark = pytest.mark.failing


def in_native_sleep(folder: str) -> None:
    """The GIL is held; a signal cuts a sleep short, and so there are many."""
    sleep = ctypes.PyDLL(None).usleep
    Path(folder, f"there-{xmp.rank()}").touch()
    while not Path(folder, "go").exists():
        sleep(100_000)


def in_python(folder: str) -> None:
    Path(folder, f"there-{xmp.rank()}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.02)


def two_kinds(rank: int, folder: str) -> int:
    (in_native_sleep if rank == 1 else in_python)(folder)
    return rank


def there(folder: Path, count: int) -> bool:
    return len(list(folder.glob("there-*"))) == count


def is_stopped(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def test_also_of_those_in_native_code_and_stopped_ones(method: str, tmp_path: Path) -> None:
    context = launch(method, two_kinds, str(tmp_path), nprocs=3, join=False)
    until(lambda: there(tmp_path, 3), 25)
    os.kill(context.pids()[2], signal.SIGSTOP)
    until(lambda: is_stopped(context.pids()[2]))
    stacks = context.stacks()
    assert sorted(stacks) == [0, 1, 2]
    assert "in in_python" in stacks[0]
    assert "in in_native_sleep" in stacks[1]
    assert stacks[2].startswith("no answer: stopped, kernel function ")
    os.kill(context.pids()[2], signal.SIGCONT)
    until(lambda: not is_stopped(context.pids()[2]))
    until(lambda: "in in_python" in context.stacks()[2])
    (tmp_path / "go").touch()
    assert list(context.results()) == [0, 1, 2]


def returns(rank: int) -> int:
    return rank


def test_asking_replicas_that_have_just_been_made_harms_none(method: str) -> None:
    for _ in range(3):
        context = launch(method, returns, nprocs=4, join=False)
        asked = [context.stacks() for _ in range(5)]
        assert set().union(*asked) <= {0, 1, 2, 3}
        assert list(context.results()) == [0, 1, 2, 3]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_a_supervisor_that_hangs_does_not_hide_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmp._processes.launcher.supervised._ANSWER_WAIT", 0.5)
    context = launch("forkserver", two_kinds, str(tmp_path), nprocs=2, join=False)
    until(lambda: there(tmp_path, 2), 25)
    supervisor = psutil.Process(context.pids()[0]).ppid()
    os.kill(supervisor, signal.SIGSTOP)
    try:
        until(lambda: is_stopped(supervisor))
        stacks = context.stacks()
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert "in in_python" in stacks[0]
    assert "in in_native_sleep" in stacks[1]
    (tmp_path / "go").touch()
    assert list(context.results()) == [0, 1]


def dies_when_told(rank: int, folder: str, how: str) -> None:
    in_python(folder)
    if rank == 0 and how == "abort":
        os.abort()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    never_returns()


@pytest.mark.parametrize("how", ["abort", "kill"])
def test_what_was_asked_from_outside_is_not_taken_for_a_crash(how: str, tmp_path: Path) -> None:
    from xmp._commands import stacks

    context = launch("forkserver", dies_when_told, str(tmp_path), how, join=False)
    until(lambda: there(tmp_path, 2), 25)
    (found,) = stacks.find(context.pids()[0])
    assert "in in_python" in stacks.report(found)
    (tmp_path / "go").touch()
    with pytest.raises(xmp.ReplicaDied) as caught:
        context.join()
    (failure,) = (f for f in caught.value.failures if f.rank == 0)
    if how == "abort":
        assert failure.stacks.startswith("Fatal Python error: Aborted")
        assert "dies_when_told" in failure.stacks
        assert "in in_python" not in failure.stacks
    else:
        assert failure.stacks == ""


def waits_with(rank: int, folder: str, what: str) -> None:
    """Rank 0 is no longer what xmp has made it; the other one is."""
    if rank == 0 and what == "reset":
        signal.signal(DUMP_SIGNAL, signal.SIG_DFL)
    elif rank == 0 and what == "unregistered":
        faulthandler.unregister(DUMP_SIGNAL)
    elif rank == 0 and what == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, [DUMP_SIGNAL])
    elif rank == 0 and what == "sh":
        wait = "touch $0/there-0; while ! test -e $0/go; do sleep 0.05; done"
        os.execvp("sh", ["sh", "-c", wait, folder])
    elif rank == 0 and what == "python":
        wait = (
            "import os, sys, time; os.chdir(sys.argv[1]); open('there-0', 'w').close()\n"
            "while not os.path.exists('go'): time.sleep(0.02)"
        )
        os.execv(sys.executable, [sys.executable, "-c", wait, folder])
    in_python(folder)
    if what == "blocked":  # a request that had been sent would now come into another program
        os.execvp("true", ["true"])


WORDS = {
    "reset": "does not answer requests for stacks: it has reset its signals; ",
    "unregistered": "does not answer requests for stacks: it has reset its signals; ",
    "blocked": "does not answer requests for stacks: it blocks their signal; ",
    "sh": "does not answer requests for stacks: it has executed another program (sh); ",
    "python": "does not answer requests for stacks: it has executed another program (python",
}


@pytest.mark.parametrize("what", WORDS)
def test_asking_ends_no_replica_that_would_not_answer(
    method: str, what: str, tmp_path: Path
) -> None:
    """Not through the supervisor, and not through another process of the same user."""
    context = launch(method, waits_with, str(tmp_path), what, join=False)
    until(lambda: there(tmp_path, 2), 25)
    words = WORDS[what]
    if (method, what) == ("spawn", "unregistered"):
        words = "no answer: "  # its parent has ignored the signal, and so does it again
    if what == "blocked" and has_native_threads(context.pids()[0]):
        words = "Thread "  # a library of this process starts them in its forks, and one answers
    for stacks in (context.stacks(), context.stacks()):
        assert stacks[0].startswith(words)
        assert "kernel function" in stacks[0] or words == "Thread "
        assert "in in_python" in stacks[1]
    by_pid = stacks_by_pid.of_launch(psutil.Process(context.pids()[1]).ppid())
    if what not in ("sh", "python"):  # exec has closed the file that has the rank
        assert by_pid[0].startswith(words)
    assert "in in_python" in by_pid[1]
    (tmp_path / "go").touch()
    assert context.join()


def has_native_threads(pid: int) -> bool:
    return psutil.Process(pid).num_threads() > 1


def test_real_time_signals_have_the_names_of_kill() -> None:
    for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
        command = ["bash", "-c", f"kill -l {number}"]
        named = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        assert signal_name(number) == f"SIG{named}"


def dies_by(rank: int, number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_failure_names_them_so() -> None:
    with pytest.raises(xmp.ReplicaDied) as caught:
        launch("fork", dies_by, signal.SIGRTMIN + 3, nprocs=1)
    assert caught.value.signal_name == "SIGRTMIN+3"
    assert "terminated with signal SIGRTMIN+3" in str(caught.value)
    with pytest.raises(xmp.ReplicaDied) as caught:
        # The C library's own, for which this process may have its handler.
        launch("spawn", dies_by, signal.SIGRTMIN - 1, nprocs=1)
    assert "signal signal" not in str(caught.value)


def test_a_fifo_of_the_users_with_the_name_of_a_stacks_file_is_not_waited_for(
    tmp_path: Path,
) -> None:
    from xmp._processes.system.stack_dump import STACKS
    from xmp._processes.system.stacks_by_pid import _file

    place = tmp_path / "xmp-stacks-7"
    os.mkfifo(place)
    held = os.open(place, os.O_RDWR)
    writer = os.open(place, os.O_WRONLY)
    os.close(held)
    try:
        assert _file(os.getpid(), STACKS) is None
    finally:
        os.close(writer)
