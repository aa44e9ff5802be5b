"""One replica fails while the others go on."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest

from tests.support.launching import METHODS, failure, never_returns
from tests.support.stage import Outcome, Script, Stage
from tests.support.waiting import until

NO_GRACE = 600  # seconds: a launch that waits for it outlasts the time of a test


def one_fails(rank: int, others: str, folder: Path) -> None:
    if rank == 1:
        until(lambda: len(os.listdir(folder)) == 2)
        raise ValueError("the cause")
    if others == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / str(rank)).touch()
    never_returns()


def signals(method: str, others: str, grace: float, folder: Path) -> list[str | None]:
    """What has ended the others."""
    folder.mkdir()
    error = failure(method, one_fails, others, folder, nprocs=3, grace=grace)
    assert error.rank == 1
    assert isinstance(error.__cause__, ValueError)
    return [each.signal_name for each in error.failures[1:]]


@pytest.mark.each_method
def test_a_failure_ends_the_others_at_once(method: str, tmp_path: Path) -> None:
    assert signals(method, "asleep", NO_GRACE, tmp_path / "there") == ["SIGTERM"] * 2


def test_a_replica_that_ignores_sigterm_is_killed_after_the_grace(
    method: str, tmp_path: Path
) -> None:
    assert signals(method, "deaf", 0.2, tmp_path / "there") == ["SIGKILL"] * 2


def test_a_blocked_native_call_does_not_hold_the_launch_up(method: str, tmp_path: Path) -> None:
    """SIGTERM is handled by C's default action, not by Python between two bytecodes."""

    def fn(rank: int) -> None:
        if rank == 1:
            until((tmp_path / "there").exists)
            raise ValueError("the cause")
        sleep = ctypes.PyDLL(None).sleep
        (tmp_path / "there").touch()
        while True:  # a request for stacks ends the call
            sleep(600)  # holds the interpreter lock

    error = failure(method, fn, grace=NO_GRACE)
    assert [each.signal_name for each in error.failures] == [None, "SIGTERM"]


def is_stopped(stat: Path) -> bool:
    return stat.read_text().rpartition(")")[2].split()[0] == "T"


def test_a_stopped_replica_does_not_hold_the_launch_up(method: str, tmp_path: Path) -> None:
    place = tmp_path / "stat"

    def fn(rank: int) -> None:
        if rank == 1:
            until(lambda: place.is_symlink() and is_stopped(place))
            raise ValueError("the cause")
        place.symlink_to(f"/proc/{os.getpid()}/stat")
        os.kill(os.getpid(), signal.SIGSTOP)
        never_returns()

    error = failure(method, fn, grace=NO_GRACE)
    assert [each.signal_name for each in error.failures] == [None, "SIGTERM"]


def misses_a_peer(rank: int, folder: str) -> str:
    path = Path(folder) / "pid"
    if rank == 0:
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").rename(path)
        return "left early"
    until(path.exists)
    until(lambda: not os.path.exists(f"/proc/{path.read_text()}"))
    raise RuntimeError("Connection closed by peer")


def test_a_peer_that_had_finished_is_named(method: str, tmp_path: Path) -> None:
    error = failure(method, misses_a_peer, str(tmp_path))
    assert "\n\nrank 0 had finished. If rank 1 waited for it, the ranks diverged: " in str(error)


@pytest.mark.each_method
def test_stacks_of_the_others_are_taken_at_a_failure(method: str) -> None:
    def waits_in_here(path: str) -> None:
        Path(path).touch()
        never_returns()

    def fn(rank: int, path: str) -> None:
        if rank == 0:
            waits_in_here(path)
        until(lambda: os.path.exists(path))
        raise ValueError("x")

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        error = failure(method, fn, f"{folder}/here")
    assert "waits_in_here" in error.stacks[0]


TORCH = """
import os, sys
import xmp

def fn(rank, how):
    if rank == 1:
        if how == "raise":
            raise ValueError("boom")
        elif how == "abort":
            os.abort()
        sys.exit(5)

if __name__ == "__main__":
    import torch.multiprocessing as mp
    from torch.multiprocessing.spawn import ProcessException

    def start(start, how):
        start(fn, (how,), nprocs=2, start_method=sys.argv[1])

    try:
        start(xmp.spawn, "raise")
    except mp.ProcessRaisedException as e:
        assert isinstance(e, ProcessException) and isinstance(e, xmp.ReplicaRaised)
        print(e.error_index, e.error_pid > 0, "Process 1 terminated with the following" in str(e))
    for how in ("abort", "exit"):
        try:
            start(xmp.start_processes, how)
        except mp.ProcessExitedException as e:
            assert isinstance(e, ProcessException) and isinstance(e, xmp.ReplicaDied)
            print(e.error_index, e.exit_code, e.signal_name)
"""


def test_torchs_own_classes_catch_it_when_torch_is_loaded(method: str, script: Script) -> None:
    done: Outcome = script(TORCH, method)
    assert done.out == "1 True True\n1 -6 SIGABRT\n1 5 None\n", done


# --- replicas that do not end by themselves ------------------------------------------------------

HEAD = """
    import ctypes, os, signal, subprocess, sys, time
    import in_script, xmp

    def meet():
        '''All replicas are in their function; the pids of the others.'''
        open(f"here-{os.getpid()}", "w").close()
        while len(here := [n for n in os.listdir(".") if n.startswith("here-")]) < 3:
            time.sleep(0.002)
        return {int(name[5:]) for name in here} - {os.getpid()}

    def obedient(rank):
        meet()
        if rank == 1:
            raise ValueError("the cause")
        in_script.never_returns()

    def stuck(rank):
        '''Its handler of SIGTERM can never run.'''
        signal.signal(signal.SIGTERM, lambda *_: None)
        meet()
        if rank == 1:
            raise ValueError("the cause")
        mutex = ctypes.create_string_buffer(128)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

    def busy(rank):
        meet()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            pass

    def parents(rank):
        '''Children that only their replica knows of end with it.'''
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        obedient(rank)

    def holding_stderr(rank):
        '''A daemon that keeps the replica's standard error open must not keep the launch.'''
        if rank == 1 and os.fork() == 0:
            os.setsid()
            in_script.never_returns()
        obedient(rank)

    if __name__ == "__main__":
        fn, method, grace = sys.argv[1:]
        try:
            xmp.spawn(globals()[fn], nprocs=3, runtime="cpu", start_method=method,
                      grace=float(grace))
        except xmp.ReplicaError as error:
            in_script.say(kind=type(error).__name__, rank=error.rank,
                          signals={f.rank: f.signal_name for f in error.failures[1:]},
                          left=in_script.belongings()["processes"])
"""


def ended_by(stage: Stage, fn: str, method: str, grace: float) -> dict[str, str | None]:
    """What has ended the ranks that had not failed."""
    outcome = stage.run(HEAD, fn, method, str(grace))
    said = outcome.said
    assert said["rank"] == 1, outcome.err
    assert set(said["left"]) <= {"xmp-template", "xmp-script"}
    signals: dict[str, str | None] = said["signals"]
    return signals


@pytest.mark.failing
@pytest.mark.parametrize("fn", ["parents", "busy", "holding_stderr"])
def test_everybody_else_is_stopped_at_once(stage: Stage, fn: str) -> None:
    assert ended_by(stage, fn, "forkserver", NO_GRACE) == {"0": "SIGTERM", "2": "SIGTERM"}


@pytest.mark.failing
@pytest.mark.parametrize("method", METHODS)
def test_one_that_cannot_handle_sigterm_is_killed_after_the_grace(
    stage: Stage, method: str
) -> None:
    assert ended_by(stage, "stuck", method, 0.6) == {"0": "SIGKILL", "2": "SIGKILL"}
