"""Failures of a launch over hosts: one error, which names host and rank, in time, nothing left."""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import xmp
from tests.support.in_script import never_returns, signals, state
from tests.support.stage import Outcome, Stage
from tests.support.waiting import until
from xmp._hosts.engines import driver
from xmp._rules import job_rules

pytestmark = pytest.mark.hosts

TWO: dict[str, Any] = {
    "engine": "local", "hosts": 2, "nprocs": 2, "runtime": "cpu", "progress": False, "grace": 600.0,
}  # fmt: skip


class NoLabelError(Exception):
    """Known to the driver and, by value, to the replicas."""


def note(folder: Path, rank: int) -> None:
    (folder / f"in-fn-{rank}").touch()


def raises(rank: int, folder: Path) -> str:
    note(folder, rank)
    if rank == 2:
        return "early"
    if rank == 3:
        until(lambda: len(list(folder.glob("in-fn-*"))) == 4, 30)
        raise NoLabelError("no such label")
    return never_returns()


def test_a_replica_raises(tmp_path: Path) -> None:
    with pytest.raises(
        xmp.ReplicaRaised, match=r"rank 3 of 4 .*127\.0\.0\.3\) raised .*NoLabel"
    ) as info:
        xmp.launch(raises, (tmp_path,), **TWO)
    error = info.value
    assert isinstance(error.__cause__, NoLabelError)
    assert error.__cause__.args == ("no such label",)
    assert (error.rank, error.local_rank, error.host) == (3, 1, "127.0.0.3")
    assert [each.rank for each in error.failures if each.label == "cause"] == [3]
    assert {each.label for each in error.failures[1:]} <= {"stopped by xmp", "collateral"}
    assert "in raises" in str(error)


class Never:
    """What no process can load."""

    def __reduce__(self) -> Any:
        return never_returns, ()


def test_start_timeout_counts_from_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes 20 s to find the hosts leaves them 1 s of 21: to meet, or to load."""
    called = time.monotonic_ns() - 20_000_000_000
    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic_ns=lambda: called))
    with pytest.raises((xmp.ReplicaTimeout, xmp.StartError), match=r"start_timeout="):
        xmp.launch(print, (Never(),), start_timeout=21, **TWO)


def exits(rank: int, folder: Path) -> None:
    (folder / f"here-{rank}").touch()
    if rank == 3:
        until(lambda: len(list(folder.glob("here-*"))) == 4, 60)
        sys.exit(7)
    never_returns()


def test_torchs_names_have_the_place_in_the_processes_of_all_hosts(tmp_path: Path) -> None:
    job = xmp.launch(exits, (tmp_path,), join=False, **TWO)
    with pytest.raises(xmp.ReplicaDied, match=r"process 3 terminated with exit code 7$") as info:
        job.join()
    assert re.match(r"rank 3 of 4 .*127\.0\.0\.3\) ", str(info.value))
    assert (info.value.error_index, info.value.rank, info.value.local_rank) == (3, 3, 1)
    assert job.processes[info.value.error_index].rank == 3
    assert pickle.loads(pickle.dumps(info.value)).error_index == 3


def stops_at_a_breakpoint(rank: int) -> None:
    if rank == 2:
        breakpoint()
    never_returns()


def test_a_breakpoint_has_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    with pytest.raises(xmp.ReplicaRaised, match=r"replicas of a launch with hosts= have none"):
        xmp.launch(stops_at_a_breakpoint, **TWO)


def waits(rank: int, folder: Path) -> None:
    note(folder, rank)
    never_returns()


def test_an_agent_is_ended(tmp_path: Path) -> None:
    """By SIGKILL, that of host 1: ``test_kept_agents.py``."""
    with xmp.launch(waits, (tmp_path,), join=False, **TWO) as job:
        pids = job.pids()
        os.kill(job.hosts[0].pid, signal.SIGINT)
        with pytest.raises(xmp.HostLost, match=r"host 0 \(127\.0\.0\.2\).*SIGINT") as info:
            job.join()
    assert (info.value.host, info.value.host_index) == ("127.0.0.2", 0)
    until(lambda: not any(Path(f"/proc/{pid}/root").exists() for pid in pids))


def test_an_agent_that_is_stopped_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 1 s here."""
    monkeypatch.setattr(job_rules, "SILENCE", job_rules.SECOND)
    monkeypatch.setattr("xmp._hosts.engines.hosts_launch._LOOK_EVERY", 0.2)
    with xmp.launch(waits, (tmp_path,), join=False, **{**TWO, "grace": 1.0}) as job:
        pids = job.pids()
        os.kill(job.hosts[0].pid, signal.SIGSTOP)
        with pytest.raises(xmp.HostLost, match=r"host 0 \(127\.0\.0\.2\).*was stopped"):
            job.join()
    until(lambda: not any(Path(f"/proc/{pid}/root").exists() for pid in pids))


def never_works(rank: int) -> None:
    if rank == 3:
        raise NoLabelError(f"attempt {xmp.restart_count()}")
    never_returns()


def test_the_error_of_the_last_attempt_has_the_earlier_ones(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """An attempt that mends it: ``test_kept_agents.py``, of a lost host."""
    with pytest.raises(xmp.ReplicaRaised, match="attempt 1") as info:
        xmp.launch(never_works, max_restarts=1, **TWO)
    assert [str(each.__cause__) for each in info.value.history] == ["attempt 0"]
    first = "rank 3 raised test_hosts_that_fail.NoLabelError: attempt 0"
    assert first in str(info.value)
    assert capfd.readouterr().err.count(f"restart 1 of 1: {first}") == 1


def test_a_time_limit_names_the_ranks_of_all_hosts(tmp_path: Path) -> None:
    with pytest.raises(xmp.ReplicaTimeout, match="ranks 0-3 of 4 on 2 hosts") as info:
        xmp.launch(waits, (tmp_path,), hang_timeout=1, **TWO)
    assert set(info.value.stacks) == {0, 1, 2, 3}
    assert all("in waits" in text for text in info.value.stacks.values())
    assert info.value.host == "127.0.0.2"


def test_what_does_not_load_on_a_host(tmp_path: Path) -> None:
    with pytest.raises(xmp.StartError, match="no such module here") as info:
        xmp.launch(lambda rank, x: x, (Unloadable(),), **TWO)
    assert isinstance(info.value.__cause__, ModuleNotFoundError)


class Unloadable:
    def __reduce__(self) -> Any:
        return not_there, ()


def not_there() -> None:
    raise ModuleNotFoundError("no such module here")


PROGRAM = """
    import pathlib, sys, time
    import in_script, xmp

    HERE = pathlib.Path(__file__).parent

    def steps(rank):
        for step in range(10_000):
            time.sleep(0.002)
            if step == 5:
                (HERE / f"in-fn-{rank}").touch()
            if xmp.preempted():
                return step

    def stays_on_host_0(rank):
        (HERE / f"in-fn-{rank}").touch()
        if rank < 2:
            in_script.never_returns()

    def cleans(rank):
        try:
            (HERE / f"in-fn-{rank}").touch()
            in_script.never_returns()
        finally:
            (HERE / f"cleaned-{rank}").touch()

    if __name__ == "__main__":
        options = dict(engine="local", hosts=2, nprocs=2, runtime="cpu", grace=2)
        results = xmp.launch(globals()[sys.argv[1]], **options)
        print(len(set(results)), xmp.preempted())
"""


def test_the_driver_is_killed(stage: Stage) -> None:
    """While processes of the launch are stopped: ``supervisor/test_stopped.py``."""
    driver = stage.start(PROGRAM, "cleans")
    stage.in_function(driver, 4)
    driver.kill()
    driver.wait()
    stage.gone()


def test_a_ctrl_c_ends_all_hosts_in_order(stage: Stage) -> None:
    driver = stage.start(PROGRAM, "cleans")
    stage.in_function(driver, 4)
    driver.send_signal(signal.SIGINT)
    outcome = stage.outcome(driver)
    assert outcome.code == -signal.SIGINT
    assert "KeyboardInterrupt" in outcome.err
    assert len(list(stage.folder.glob("cleaned-*"))) == 4
    stage.gone()


def after_sigterm(stage: Stage, function: str, *ended: str) -> Outcome:
    """How the driver ends by SIGTERM, once these replicas have ended.

    It waits for the end of the launch by then: while hosts start, the signal ends it at once.
    """
    driver = stage.start(PROGRAM, function)
    stage.in_function(driver, 4)
    until(lambda: not (ended and stage.named(*ended)))
    until(lambda: signal.SIGTERM in signals(driver.pid, "SigCgt"), 30, "the driver waits")
    driver.send_signal(signal.SIGTERM)
    outcome = stage.outcome(driver)
    stage.gone()
    return outcome


OF_HOST_1 = ("xmp-replica-2", "xmp-replica-3")


def test_all_hosts_are_preempted_at_the_same_call(stage: Stage) -> None:
    outcome = after_sigterm(stage, "steps")
    assert (outcome.code, outcome.out) == (0, "1 True\n"), outcome


def test_a_sigterm_when_a_host_has_nothing_more_to_do_and_no_replica_asks(stage: Stage) -> None:
    outcome = after_sigterm(stage, "stays_on_host_0", *OF_HOST_1)
    assert outcome.code == -signal.SIGTERM, outcome


def test_a_sigterm_while_hosts_are_awaited(stage: Stage) -> None:
    driver = stage.start(PROGRAM, "cleans")
    agents = until(lambda: (found := stage.first_of("xmp-agent"))[1:] and found, 30)
    os.kill(agents[1], signal.SIGSTOP)
    until(lambda: state(agents[1]) == "T")
    until(lambda: signal.SIGTSTP in signals(driver.pid, "SigCgt"), 30, "the driver waits")
    driver.send_signal(signal.SIGTERM)
    outcome = stage.outcome(driver)
    assert outcome.code == -signal.SIGTERM, outcome
    stage.gone()
