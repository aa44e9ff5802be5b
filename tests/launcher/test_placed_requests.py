"""What is asked of a launch on two hosts: preemption, hangs, who is missing, one at a time."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.support import in_script
from tests.support.placed import said_of
from tests.support.stage import Stage
from tests.support.two_hosts import Two, below
from tests.support.waiting import until

pytestmark = pytest.mark.hosts


@pytest.fixture
def two(stage: Stage) -> Two:
    return Two(stage)


def test_all_are_preempted_at_the_same_call(two: Two) -> None:
    for host in range(2):
        two.start(host, "steps_until_preempted")
    two.in_function()
    two.launchers[1].send_signal(signal.SIGTERM)
    first, second = two.said()
    steps = {*first, *second}
    assert len(steps) == 1, (first, second)
    assert min(steps) >= 5


def test_hosts_whose_replicas_do_not_ask_do_not_hold_the_others_up(two: Two) -> None:
    for host in range(2):
        two.start(host, "one_host_asks")
    two.in_function()
    two.launchers[0].send_signal(signal.SIGTERM)
    until(lambda: not two.stage.named("xmp-replica-0", "xmp-replica-1"))
    (two.stage.folder / "go").touch()
    first, second = two.said()
    assert first[0] == first[1] >= 5
    assert second == [-1, -1]


def test_progress_on_one_host_counts_on_all(two: Two) -> None:
    assert two.both("one_makes_progress", hang_timeout=1) == [[0, 1], [2, 3]]


def test_a_launch_that_hangs_on_all_hosts_is_overdue_on_all(two: Two) -> None:
    for name, text, _, _ in two.both("none_makes_progress", hang_timeout=1):
        assert name == "ReplicaTimeout", text
        assert "hang_timeout" in text


LAUNCHES = """
    import sys
    import psutil, xmp
    from xmp._hosts.carrier import host_link

    def own(rank):
        return rank

    if __name__ == "__main__":
        started = []
        start = host_link.HostLink.start
        host_link.HostLink.start = lambda *args: [start(*args), started.append(args[0].pid)]
        for _ in range(int(sys.argv[1])):
            assert list(xmp.spawn(own, nprocs=1, runtime="cpu", start_timeout=20))
        print([psutil.pid_exists(pid) for pid in started])
        xmp.shutdown()
        print([psutil.pid_exists(pid) for pid in started])
"""


def test_launches_of_one_program_use_one_connection(two: Two) -> None:
    for index in range(2):
        two.start(index, "2", source=LAUNCHES)
    for launcher in two.launchers:
        assert two.stage.outcome(launcher, timeout=40).out.split("\n")[:2] == ["[True]", "[False]"]
    two.stage.gone()


def test_hosts_with_different_process_groups(two: Two) -> None:
    two.start(0, "place", backend="gloo")
    two.start(1, "place")
    for name, text, _, _ in two.said():
        assert name == "PlanError", text
        assert "backend gloo" in text


def test_a_host_with_another_secret_is_named_on_host_0(two: Two) -> None:
    two.start(0, "place")
    two.start(1, "place", env={"XMP_JOB_SECRET": "another"})
    written = two.stage.folder / "script1.py.err"
    until(lambda: "was turned away" in written.read_text(), 30)
    second = two.stage.outcome(two.launchers[1], timeout=40)
    two.launchers[0].send_signal(signal.SIGINT)
    first = two.stage.outcome(two.launchers[0], timeout=40)
    assert "has another secret" in second.err
    assert "has not come; 0" in first.err
    assert "was turned away" in first.err
    assert first.err.count("was turned away") >= 2  # at once, and in the error


def test_what_it_waits_for_while_hosts_are_missing(two: Two) -> None:
    two.start(0, "sums")
    launcher = two.launchers[0]
    until(lambda: two.stage.named("xmp-carrier"))
    written = two.stage.folder / "script1.py.err"

    def said() -> bool:
        launcher.send_signal(signal.SIGQUIT)
        return "host 1 of 2 has not come; 0" in written.read_text()

    until(lambda: signal.SIGQUIT in caught(launcher.pid))
    until(said)
    launcher.send_signal(signal.SIGINT)
    outcome = two.stage.outcome(launcher, timeout=20)
    assert "KeyboardInterrupt: xmp waited for the hosts of the job: host 1 of 2" in outcome.err
    two.stage.gone()


def caught(pid: int) -> set[int]:
    return in_script.signals(pid, "SigCgt")


def test_a_secret_of_any_bytes(two: Two) -> None:
    secret = os.fsdecode(b"\xe9\xff key")
    found = two.both("place", env={"XMP_JOB_SECRET": secret})
    assert found == [[[2 * host + local, host, 4] for local in range(2)] for host in range(2)]


@pytest.mark.parametrize(
    ("number", "hears_it_late"), [(signal.SIGINT, False), (signal.SIGTERM, True)]
)
def test_a_signal_to_a_host_that_waits_for_the_other_at_the_end(
    two: Two, number: int, hears_it_late: bool
) -> None:
    for host in range(2):
        two.start(host, "only_host_0_runs_on")
    two.in_function()
    waiting = two.launchers[1]
    until(lambda: number in caught(waiting.pid))  # before, SIGTERM just kills it
    if hears_it_late:  # it gets the signal before it has read that its replicas have returned
        waiting.send_signal(signal.SIGSTOP)
    (two.stage.folder / "end").touch()
    until(lambda: not two.stage.named("xmp-replica-2", "xmp-replica-3"))
    waiting.send_signal(number)
    waiting.send_signal(signal.SIGCONT)
    if number == signal.SIGTERM:  # a preemption: host 0 may end by itself
        (two.stage.folder / "go").touch()
    first, second = (two.stage.outcome(each, timeout=20) for each in two.launchers)
    two.stage.gone()
    if number == signal.SIGTERM:
        assert said_of(first) == said_of(second) == [True, True]
    else:
        assert said_of(first)[0] == "HostLost"
        assert "on host 1" in said_of(first)[1]
        assert said_of(second)[0] == "KeyboardInterrupt"


def test_a_stopped_supervisor_does_not_hold_its_host(two: Two) -> None:
    for host in range(2):
        two.start(host, "fails_when_told")
    two.in_function()
    [supervisor] = [pid for pid in two.stage.supervisors() if below(pid, two.launchers[1].pid)]
    os.kill(supervisor, signal.SIGSTOP)
    (two.stage.folder / "fails-0").touch()
    for name, text, where, _ in two.said():
        assert (name, where["rank"]) == ("ReplicaRaised", 0), text


def test_a_host_that_ends_during_restarts_ends_the_others(two: Two) -> None:
    two.start(0, "always_fails", max_restarts=1000)
    two.start(1, "always_fails", max_restarts=1000)
    written = [two.stage.folder / f"script{1 + host}.py.err" for host in range(2)]
    until(lambda: all("restart 2 of" in each.read_text() for each in written), 20)
    two.launchers[1].send_signal(signal.SIGINT)
    first, second = two.said()
    assert second[0] == "KeyboardInterrupt"
    assert first[0] in ("HostLost", "StartError"), first[1]
    assert "host 1" in first[1] or "on host 1" in first[1]


def test_launches_of_several_threads(two: Two) -> None:
    for host in range(2):
        two.start(host, "", source=THREADS)
    found = [json.loads(each.out.splitlines()[-1]) for each in two.ended(40)]
    expected = [[[0, 1], "PlanError"], [[2, 3], "PlanError"]]
    assert [sorted(host, key=str) for host in found] == [sorted(each, key=str) for each in expected]


THREADS = """
    import json, threading
    import xmp

    def own(rank, which):
        return rank

    if __name__ == "__main__":
        found = []

        def launch(which):
            try:
                found.append(list(xmp.spawn(own, (which,), nprocs=2, runtime="cpu")))
            except xmp.PlanError:
                found.append("PlanError")

        threads = [threading.Thread(target=launch, args=(i,)) for i in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(json.dumps(found))
"""
