"""Two launchers that something has placed on two hosts: both play on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.support.stage import Outcome, Stage
from tests.support.waiting import until

pytestmark = pytest.mark.hosts

PROGRAM = """
    import json, os, pathlib, signal, sys, time
    import in_script, xmp

    HERE = pathlib.Path(os.environ["FOLDER"])

    def sums(rank):
        total = float(xmp.all_reduce(float(rank)))
        return rank, xmp.host_index(), xmp.world_size(), total

    def fails(rank):
        (HERE / f"in-fn-{rank}").touch()
        if rank == 3:
            raise ValueError("no such label")
        in_script.never_returns()

    def fails_in_a_collective(rank):
        if rank == 3:
            raise ValueError("no such label")
        xmp.barrier()
        in_script.never_returns()

    def dies(rank):
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        in_script.never_returns()

    def waits(rank):
        (HERE / f"in-fn-{rank}").touch()
        in_script.never_returns()

    def fails_once(rank):
        if rank == 3 and not xmp.restart_count():
            raise ValueError("no such label")
        if xmp.restart_count():
            return xmp.restart_count(), float(xmp.all_reduce(1.0))
        in_script.never_returns()

    def steps_until_preempted(rank):
        '''Each at its own speed: they agree all the same.'''
        steps = 0
        while not xmp.preempted():
            steps += 1
            time.sleep(0.001 * (rank + 1))
            if steps == 5:
                (HERE / f"in-fn-{rank}").touch()
        return steps

    def steps_together(rank):
        steps = 0
        while not xmp.preempted():
            steps += 1
            assert float(xmp.all_reduce(1.0)) == 4
            if steps == 5:
                (HERE / f"in-fn-{rank}").touch()
        return steps

    def one_host_asks(rank):
        '''The replicas of host 1 do not look.'''
        if rank < 2:
            return steps_until_preempted(rank)
        (HERE / f"in-fn-{rank}").touch()
        while not (HERE / "go").exists():
            time.sleep(0.01)
        return -1

    def one_makes_progress(rank):
        (HERE / f"in-fn-{rank}").touch()
        if rank == 3:
            for _ in range(40):
                xmp.heartbeat()
                time.sleep(0.1)
            return rank
        time.sleep(4.5)
        return rank

    def none_makes_progress(rank):
        (HERE / f"in-fn-{rank}").touch()
        in_script.never_returns()

    if __name__ == "__mp_main__" and "slow" in sys.argv:
        (HERE / "loads").touch()
        in_script.never_returns()

    def fails_when_the_other_loads(rank):
        if rank == 3 and not xmp.restart_count():
            while not (HERE / "loads").exists():
                time.sleep(0.01)
            raise ValueError("no such label")

    if __name__ == "__main__":
        if "torch" in os.environ.get("LOADED", ""):
            import torch
        options = json.loads(sys.argv[2])
        try:
            fn = globals()[sys.argv[1]]
            if "unjoined" in os.environ.get("LOADED", ""):
                context = xmp.spawn(fn, runtime="cpu", join=False, **options)
                while not (HERE / "go").exists():
                    time.sleep(0.01)
                results = context.results()
            else:
                results = xmp.spawn(fn, runtime="cpu", **options)
            print(json.dumps(list(results)))
        except BaseException as error:
            where = {name: getattr(error, name, None) for name in ("rank", "host", "host_index")}
            print(json.dumps([type(error).__name__, str(error), where, time.time()]))
            raise
"""


class Two:
    """Both launchers; each is a process of its own."""

    def __init__(self, stage: Stage, port: int) -> None:
        self.stage, self.port = stage, port
        self.launchers: list[subprocess.Popen[str]] = []

    def start(self, index: int, function: str, *, hosts: int = 2, **options: Any) -> None:
        env = {
            "NNODES": str(hosts), "NODE_RANK": str(index), "MASTER_ADDR": "127.0.0.2",
            "MASTER_PORT": str(self.port), "FOLDER": str(self.stage.folder),
            **options.pop("env", {}),
        }  # fmt: skip
        source, argv = options.pop("source", PROGRAM), options.pop("argv", ())
        given = json_of({"nprocs": 2, "grace": 1.0, **options})
        self.launchers.append(self.stage.start(source, function, given, *argv, env=env))

    def both(self, function: str, **options: Any) -> list[Any]:
        for index in range(2):
            self.start(index, function, **options)
        return self.said()

    def in_function(self) -> None:
        for host, launcher in enumerate(self.launchers):
            self.stage.reached(launcher, *(f"in-fn-{2 * host + r}" for r in range(2)))

    def said(self) -> list[Any]:
        """The last line of each launcher; nothing is left of either."""
        found = [self.stage.outcome(launcher, timeout=40) for launcher in self.launchers]
        self.stage.gone()
        return [said_of(each) for each in found]


def json_of(value: Any) -> str:
    import json

    return json.dumps(value)


def said_of(outcome: Outcome) -> Any:
    import json

    lines = outcome.out.splitlines()
    assert lines, outcome.err
    return json.loads(lines[-1])


@pytest.fixture
def two(stage: Stage) -> Two:
    import socket

    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
    return Two(stage, port)


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_their_replicas_are_one_world(two: Two, method: str) -> None:
    found = two.both("sums", start_method=method, env={"LOADED": "torch"})
    ranks = [[[0, 0], [1, 0]], [[2, 1], [3, 1]]]
    assert found == [[[*pair, 4, 6.0] for pair in host] for host in ranks]


@pytest.mark.parametrize("function", ["fails", "fails_in_a_collective"])
def test_both_name_the_replica_that_raised(two: Two, function: str) -> None:
    for name, text, where, _ in two.both(function):
        assert name == "ReplicaRaised", text
        assert where["rank"] == 3
        assert "ValueError: no such label" in text
        assert 'raise ValueError("no such label")' in text


def test_both_name_the_replica_that_died(two: Two) -> None:
    for name, text, where, _ in two.both("dies"):
        assert (name, where["rank"]) == ("ReplicaDied", 3), text
        assert "SIGKILL" in text


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("whom", ["launcher", "supervisor"])
def test_a_host_whose_launcher_or_supervisor_is_killed(two: Two, index: int, whom: str) -> None:
    for host in range(2):
        two.start(host, "waits")
    two.in_function()
    victim = two.launchers[index]
    killed = time.time()
    if whom == "launcher":
        victim.kill()
    else:
        [supervisor] = [pid for pid in two.stage.supervisors() if below(pid, victim.pid)]
        os.kill(supervisor, signal.SIGKILL)
    other = said_of(two.stage.outcome(two.launchers[1 - index], timeout=20))
    assert other[0] == "HostLost", other[1]
    assert f"host {index}" in other[1]
    assert other[3] - killed < 2 + 1 + 1  # grace is 1 s
    two.stage.outcome(victim, timeout=20)
    two.stage.gone()


def below(pid: int, launcher: int) -> bool:
    import psutil

    return launcher in {each.pid for each in psutil.Process(pid).parents()}


def test_ctrl_c_on_one_host_ends_both(two: Two) -> None:
    for host in range(2):
        two.start(host, "waits")
    two.in_function()
    two.launchers[0].send_signal(signal.SIGINT)
    first, second = two.said()
    assert first[0] == "KeyboardInterrupt"
    assert second[0] == "HostLost"
    assert "host 0" in second[1]


def test_a_host_with_another_number_of_replicas(two: Two) -> None:
    two.start(0, "sums")
    two.start(1, "sums", nprocs=3)
    for name, text, _, _ in two.said():
        assert name == "PlanError", text
        assert "nprocs is 2 on host 0" in text
        assert "and 3 on host 1" in text


@pytest.mark.parametrize("index", [0, 1])
def test_a_host_that_does_not_come(two: Two, index: int) -> None:
    two.start(1 - index, "sums", start_timeout=2)
    [(name, text, _, _)] = two.said()
    assert name == "StartError", text
    assert f"host {index}" in text
    assert "has not come" in text


def test_both_restart(two: Two) -> None:
    found = two.both("fails_once", max_restarts=1, env={"LOADED": "torch"})
    assert found == [[[1, 4.0], [1, 4.0]]] * 2


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("function", ["steps_until_preempted", "steps_together"])
def test_all_are_preempted_at_the_same_call(two: Two, function: str, index: int) -> None:
    for host in range(2):
        two.start(host, function, env={"LOADED": "torch"})
    two.in_function()
    two.launchers[index].send_signal(signal.SIGTERM)
    first, second = two.said()
    steps = {*first, *second}
    assert len(steps) == 1, (first, second)
    assert min(steps) >= 5


def test_both_launchers_get_the_signal(two: Two) -> None:
    for host in range(2):
        two.start(host, "steps_until_preempted")
    two.in_function()
    for launcher in two.launchers:
        launcher.send_signal(signal.SIGTERM)
    first, second = two.said()
    assert len({*first, *second}) == 1, (first, second)


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
    assert two.both("one_makes_progress", hang_timeout=2) == [[0, 1], [2, 3]]


def test_a_launch_that_hangs_on_all_hosts_is_overdue_on_all(two: Two) -> None:
    for name, text, _, _ in two.both("none_makes_progress", hang_timeout=1):
        assert name == "ReplicaTimeout", text
        assert "hang_timeout" in text


LAUNCHES = """
    import sys
    import psutil, xmp
    from xmp._carrier import host_link

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


def test_a_host_that_still_loads_when_another_fails(two: Two) -> None:
    two.start(0, "fails_when_the_other_loads", argv=["slow"])
    two.start(1, "fails_when_the_other_loads")
    for name, text, where, _ in two.said():
        assert (name, where["rank"]) == ("ReplicaRaised", 3), text


@pytest.mark.parametrize("index", [0, 1])
def test_a_launch_that_no_join_waits_for_ends_with_the_others(two: Two, index: int) -> None:
    for host in range(2):
        loaded = "unjoined" if host == index else ""
        two.start(host, "fails", env={"LOADED": loaded})
    other = said_of(two.stage.outcome(two.launchers[1 - index], timeout=20))
    assert (other[0], other[2]["rank"]) == ("ReplicaRaised", 3), other[1]
    until(lambda: not two.stage.replicas())
    (two.stage.folder / "go").touch()
    own = said_of(two.stage.outcome(two.launchers[index], timeout=20))
    assert (own[0], own[2]["rank"]) == ("ReplicaRaised", 3), own[1]
    two.stage.gone()


@pytest.mark.parametrize("index", [0, 1])
def test_a_stopped_carrier_process_ends_the_launch(two: Two, index: int) -> None:
    for host in range(2):
        two.start(host, "waits")
    two.in_function()
    carriers = two.stage.named("xmp-carrier")
    [stopped] = [pid for pid in carriers if below(pid, two.launchers[index].pid)]
    os.kill(stopped, signal.SIGSTOP)
    for name, text, _, _ in two.said():
        assert name == "HostLost", text


def test_hosts_with_different_process_groups(two: Two) -> None:
    two.start(0, "sums", backend="gloo")
    two.start(1, "sums")
    for name, text, _, _ in two.said():
        assert name == "PlanError", text
        assert "backend gloo" in text


def test_a_secret_of_any_bytes(two: Two) -> None:
    secret = os.fsdecode(b"\xe9\xff key")
    assert len(two.both("sums", env={"XMP_JOB_SECRET": secret})) == 2
