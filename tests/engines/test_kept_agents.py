"""Agents that stay for the next launch of a driver: faster, and otherwise as if they were new."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.in_script import belongings, comm, is_alive, parent, state
from tests.support.stage import Stage
from tests.support.waiting import until

pytestmark = pytest.mark.hosts

TWO: dict[str, Any] = {
    "engine": "local", "hosts": 2, "nprocs": 1, "runtime": "cpu", "progress": False, "grace": 1,
}  # fmt: skip


def pids_above(rank: int) -> list[int]:
    """This replica's agent, and what is between them."""
    found = [os.getppid()]
    while comm(found[-1]) != "xmp-agent":
        found.append(parent(found[-1]))
    return found[::-1]


def agents_of(**options: Any) -> list[int]:
    return [pids[0] for pids in xmp.launch(pids_above, **{**TWO, **options})]


def port(rank: int) -> int:
    return int(os.environ["MASTER_PORT"])


def test_the_second_launch_uses_agents_templates_carriers_and_port_again() -> None:
    first = list(xmp.launch(pids_above, **TWO))
    below = [name_of_children(pids[0]) for pids in first]
    first_port = list(xmp.launch(port, **TWO))
    again = list(xmp.launch(pids_above, **TWO))
    assert [pids[:2] for pids in again] == [pids[:2] for pids in first]  # agent and template
    carriers = [[pid for name, pid in found if name == "xmp-carrier"] for found in below]
    assert all(len(found) == 1 for found in carriers)
    assert [name_of_children(pids[0]) for pids in again] == below
    assert list(xmp.launch(port, **TWO)) == first_port


def name_of_children(pid: int) -> list[tuple[str, int]]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = {int(child) for task in tasks for child in (task / "children").read_text().split()}
    return sorted((comm(child), child) for child in found)


# --- what may change between two launches -------------------------------------------------------

SAME_AS_NEW = """
    import json, os, resource, signal, sys
    from pathlib import Path
    import in_script, xmp

    OPTIONS = dict(engine="local", hosts=2, nprocs=1, runtime="cpu", progress=False, prefix=False)
    PASSING = ("MASTER_PORT", "XMP_JOB_", "XMP_LAUNCH", "XMP_MARK", "TORCHELASTIC")
    HERE = Path(__file__).parent

    def seen(rank):
        import mine
        names = ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_STACK")
        env = {n: v for n, v in os.environ.items() if not n.startswith(PASSING)}
        mask = os.umask(0)
        os.umask(mask)
        print("said", rank, flush=True)
        return {
            "env": env, "cwd": os.getcwd(), "path": sys.path, "argv": sys.argv, "umask": mask,
            "limits": [resource.getrlimit(getattr(resource, name)) for name in names],
            "cores": sorted(os.sched_getaffinity(0)), "nice": os.nice(0),
            "blocked": sorted(in_script.signals("self", "SigBlk")),
            "ignored": sorted(in_script.signals("self", "SigIgn")),
            "streams": [os.readlink(f"/proc/self/fd/{n}").partition("[")[0] for n in (1, 2)],
            "threads": xmp.replica().local_world_size, "mine": mine.__file__,
            "authkey": bytes(__import__("multiprocessing").current_process().authkey).hex(),
            "bytecode": sys.dont_write_bytecode, "locale": Path("/proc/self/loginuid").exists(),
            "cgroup": Path("/proc/self/cgroup").read_text(),
        }

    def launched():
        '''What the replicas have seen, and the agents.'''
        job = xmp.launch(seen, join=False, **OPTIONS)
        pids = [host.pid for host in job.hosts]
        return list(job.results()), pids

    def environment():
        os.environ.update(NEW="1", OMP_NUM_THREADS="3", TF_CPP_MIN_LOG_LEVEL="1", XMP_LOG="info")
        os.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=false"
        os.environ.pop("OLD")

    def search_path():
        sys.path.insert(0, str(HERE / "second"))
        sys.modules.pop("mine", None)

    def cwd():
        os.makedirs(HERE / "other", exist_ok=True)
        os.chdir(HERE / "other")

    def no_cwd():
        os.makedirs(HERE / "gone", exist_ok=True)
        os.chdir(HERE / "gone")
        os.rmdir(HERE / "gone")

    def arguments():
        sys.argv[:] = ["other", "--option"]

    def umask():
        os.umask(0o27)

    def limits():
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))

    def cores():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def nice():
        os.nice(1)

    def signals():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def streams():
        for number, name in ((1, "out.txt"), (2, "err.txt")):
            file = os.open(HERE / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
            os.close(file)

    def closed():
        os.close(1)
        os.close(2)

    def bytecode():
        sys.dont_write_bytecode = not sys.dont_write_bytecode

    ROUNDS = (
        (environment, search_path, cwd, arguments, umask, limits, cores, nice, signals, bytecode),
        (streams, no_cwd),
        (closed,),
    )

    def main():
        answers = os.dup(1)
        OPTIONS["start_method"] = sys.argv[1]
        os.environ["OLD"] = "1"
        before, pids = launched()
        for changes in ROUNDS:
            for change in changes:
                change()
            kept, of_kept = launched()
            same = of_kept == pids
            xmp.shutdown()
            new, pids = launched()
            differs = {k: (a[k], b[k]) for a, b in zip(kept, new) for k in a if a[k] != b[k]}
            changed = sorted(k for k in new[0] if new[0][k] != before[0][k])
            os.write(answers, json.dumps([same, changed, differs]).encode() + b"\\n")
            before = new

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_the_driver_changes_reaches_replicas_as_by_new_agents(
    stage: Stage, method: str
) -> None:
    for folder in ("first", "second"):
        stage.write(f"NAME = {folder!r}", f"{folder}/mine.py")
    first = {"PYTHONPATH": os.pathsep.join(map(str, (stage.folder / "first", *stage.path)))}
    outcome = stage.outcome(stage.start(SAME_AS_NEW, method, env=first), 60)
    assert outcome.code == 0, outcome.err
    found = [json.loads(line) for line in outcome.out.splitlines() if line.startswith("[")]
    assert [differs for _, _, differs in found] == [{}] * 3
    assert [same for same, _, _ in found] == [True] * 3, "they had other agents"
    first_round = {
        *("env", "path", "mine", "cwd", "argv", "umask", "limits", "cores", "nice", "blocked"),
        *("ignored", "bytecode"),
    }
    seen = [set(changed) for _, changed, _ in found]
    assert first_round <= seen[0], "no replica has seen the change"
    assert "cwd" in seen[1]
    said = (stage.folder / "out.txt").read_text().splitlines()
    assert sorted(said) == ["said 0"] * 2 + ["said 1"] * 2, "the launches of the second round alone"


VICTIMS = [
    # one after the other: a host, what it gets, which process of it
    (0, signal.SIGKILL, "xmp-agent"),
    (1, signal.SIGSTOP, "xmp-agent"),
    (0, signal.SIGKILL, "xmp-template"),
    (1, signal.SIGSTOP, "xmp-template"),
    (0, signal.SIGKILL, "xmp-carrier"),
    (1, signal.SIGKILL, "xmp-carrier"),
    (0, signal.SIGSTOP, "xmp-carrier"),
]


def test_what_ends_or_stops_between_two_launches_is_replaced() -> None:
    agents = agents_of()
    for host, number, name in VICTIMS:
        print(number.name, "to", name, "of host", host)  # shown where it fails
        found = until(lambda: named(agents[host], name))  # noqa: B023
        os.kill(found, number)
        until(lambda: state(found) in "TZX", 5)  # noqa: B023
        agents = agents_of(start_timeout=30)
        until(lambda: not is_alive(found), 5)  # noqa: B023


def named(agent: int, name: str) -> int:
    """The process of this name, which may be there twice while one of them ends."""
    found = {agent} if name == "xmp-agent" else {p for n, p in name_of_children(agent) if n == name}
    return found.pop() if len(found) == 1 else 0


def test_an_agent_that_a_signal_has_hit_is_replaced_while_it_still_ends() -> None:
    agents = agents_of()
    for number in range(2):
        os.kill(agents[number], signal.SIGKILL)
        agents = agents_of(start_timeout=30)


def test_a_port_that_another_program_has_taken_meanwhile() -> None:
    (first, *_) = xmp.launch(port, **TWO)
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", first))
        assert next(iter(xmp.launch(port, **TWO))) != first


def test_many_launches_hold_no_more_than_two() -> None:
    def held() -> dict[str, Any]:
        found = belongings()
        below = found["processes"]
        assert isinstance(below, list)
        below.remove("xmp-agent")  # of one host: what it holds itself
        return found

    for _ in range(2):
        agents = agents_of()
    before = held(), [descriptors_of(pid) for pid in agents], [tasks_of(pid) for pid in agents]
    for number in range(8):
        results = xmp.launch(lambda rank, more: rank + more, (number,), **TWO)
        assert list(results) == [number, number + 1]
    assert agents_of() == agents
    until(lambda: held() == before[0], 5, lambda: f"{held()} instead of {before[0]}")
    assert [descriptors_of(pid) for pid in agents] == before[1]
    assert [tasks_of(pid) for pid in agents] == before[2]


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def tasks_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def test_shutdown_leaves_nothing() -> None:
    agents = agents_of()
    below = [pid for agent in agents for _, pid in name_of_children(agent)]
    xmp.shutdown()
    assert not any(is_alive(pid) for pid in agents)
    until(lambda: not any(is_alive(pid) for pid in below))


ENDS = """
    import os, signal, sys
    import in_script, xmp

    OPTIONS = dict(engine="local", hosts=2, nprocs=1, runtime="cpu", progress=False)

    def function(rank, waits):
        if waits:
            open(f"in-fn-{rank}", "w").close()
            in_script.never_returns()
        return rank

    if __name__ == "__main__":
        {begin}
        {end}
"""


@pytest.mark.parametrize("runs", [False, True])
def test_a_driver_that_is_killed_leaves_nothing(stage: Stage, runs: bool) -> None:
    begin = "xmp.launch(function, (False,), **OPTIONS)"
    end = "xmp.launch(function, (True,), **OPTIONS)" if runs else "open('idle', 'w').close()"
    source = ENDS.replace("{begin}", begin).replace("{end}", f"{end}; in_script.never_returns()")
    driver = stage.start(source)
    stage.reached(driver, *(("in-fn-0", "in-fn-1") if runs else ("idle",)))
    driver.kill()
    driver.wait()
    stage.gone(seconds=2)


def test_idle_agents_keep_no_stream_of_the_driver_open(stage: Stage) -> None:
    begin = "xmp.launch(function, (False,), **OPTIONS); os.dup2(2, 1)"
    end = "open('idle', 'w').close(); in_script.never_returns()"
    read, write = os.pipe()
    source = ENDS.replace("{begin}", begin).replace("{end}", end)
    driver = stage.start(source, stdout=write)
    os.close(write)
    try:
        stage.reached(driver, "idle")
        with open(read) as file:
            assert file.read() == ""  # its end comes although the agents wait
    finally:
        driver.kill()


def test_a_fork_of_the_driver_has_agents_of_its_own(stage: Stage) -> None:
    begin = """first = list(xmp.launch(function, (False,), **OPTIONS))
        pid = os.fork()
        second = list(xmp.launch(function, (False,), **OPTIONS))"""
    end = """if pid:
            assert os.waitpid(pid, 0)[1] == 0
            assert list(xmp.launch(function, (False,), **OPTIONS)) == first
        assert first == second == [0, 1]"""
    stage.run(ENDS.replace("{begin}", begin).replace("{end}", end))


def test_templates_that_are_switched_off_leave_no_agents(stage: Stage) -> None:
    begin = "os.environ['XMP_TEMPLATE'] = 'off'; xmp.launch(function, (False,), **OPTIONS)"
    end = "assert in_script.children() == [], in_script.descendants(os.getpid())"
    stage.run(ENDS.replace("{begin}", begin).replace("{end}", end))


def test_a_lost_host_is_replaced_for_the_next_attempt(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def function(rank: int) -> tuple[int, int]:
        if rank == 1 and not xmp.restart_count():
            os.kill(pids_above(rank)[0], signal.SIGKILL)
            signal.pause()
        return xmp.world_size(), xmp.restart_count()

    before = agents_of()
    assert list(xmp.launch(function, max_restarts=1, **TWO)) == [(2, 1), (2, 1)]
    assert agents_of()[1] != before[1]
    assert "restart 1 of 1: host 1 (127.0.0.3)" in capfd.readouterr().err
