"""Ports: two launchers at once do not collide, nothing listens off loopback, leases end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.failing

MANY = """
    import os, sys, time
    import in_script, xmp

    def meet(rank):
        import torch.distributed as dist
        xmp.init_process_group()
        total = xmp.all_reduce(rank + 1.0)
        xmp.barrier()
        return [total, int(os.environ["MASTER_PORT"])]

    if __name__ == "__main__":
        xmp.preload("torch")
        with open("waiting", "a") as file:
            file.write("x")
        while len(open("waiting").read()) < 2:  # for the other launcher
            time.sleep(0.005)
        ports = []
        for _ in range(6):
            results = list(xmp.spawn(meet, nprocs=2, runtime="cpu"))
            assert [r[0] for r in results] == [3.0] * 2, results
            ports.append(results[0][1])
        in_script.say(ports=ports)
"""


def test_two_launchers_at_once(stage: Stage) -> None:
    processes = [stage.start(MANY) for _ in range(2)]
    outcomes = [stage.outcome(process, 60) for process in processes]
    for outcome in outcomes:
        assert outcome.code == 0, outcome.err
        assert len(outcome.said["ports"]) == 6
    stage.gone()


LISTENING = """
    import os, sys, time
    import in_script, xmp

    def look(rank):
        xmp.init_process_group()
        xmp.all_reduce(rank + 1.0)
        xmp.barrier()
        port = int(os.environ.get("MASTER_PORT", 0))
        found = in_script.listening(), os.getpid(), in_script.holders(port)
        xmp.barrier()
        return found

    def fail(rank):
        xmp.init_process_group()
        xmp.barrier()
        raise ValueError("any")

    if __name__ == "__main__":
        options = {"runtime": sys.argv[1], "start_method": sys.argv[2]}
        before = in_script.listening()
        during, pids, holders = zip(*xmp.spawn(look, nprocs=3, **options))
        in_script.say(during=during, pids=pids, holders=holders)
        in_script.say(before=before, after=in_script.listening())
        try:
            xmp.spawn(fail, nprocs=2, **options)
        except xmp.ReplicaRaised:
            in_script.say(after_failure=in_script.listening())
"""
Listens = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def listens(shared_stage: Stage) -> Listens:
    """What the program says with a runtime and a start method; one run for each."""

    @functools.cache
    def run(runtime: str, method: str) -> dict[str, Any]:
        return shared_stage.run(LISTENING, runtime, method, timeout=90).said

    return run


def addresses(found: list[list[object]]) -> set[str]:
    return {str(address) for address, _ in found}


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_only_rank_0_holds_the_socket_that_the_others_call(listens: Listens, method: str) -> None:
    """With a copy elsewhere, a call after rank 0 has died would hang instead of being refused."""
    said = listens("cpu", method)
    assert said["holders"] == [[said["pids"][0]]] * 3


def test_torch_listens_on_loopback_only(listens: Listens) -> None:
    said = listens("cpu", "forkserver")
    for replica in said["during"]:
        assert addresses(replica) <= {"127.0.0.1", "::1"}
    assert addresses(said["during"][0])  # rank 0 serves the store
    assert said["before"] == said["after"] == said["after_failure"] == []


def test_jax_coordinator_listens_on_loopback_only(listens: Listens) -> None:
    """Its collectives use the host name's address: the exception that the plan names."""
    said = listens("jax", "forkserver")
    assert said["before"] == said["after"] == said["after_failure"] == []
    for replica in said["during"]:
        assert "0.0.0.0" not in addresses(replica)
        assert "::" not in addresses(replica)


def test_a_held_port_is_free_after_the_launch(stage: Stage) -> None:
    """Also after a launch that could not be packed or loaded."""
    source = """
    import os, socket, threading
    import in_script, xmp
    from xmp._os import ports

    def somebodys(port):
        '''A process that is none of ours may have been given the number since.'''
        with open("/proc/self/net/tcp") as lines:
            rows = [line.split() for line in lines][1:]
        users = {f"socket:[{r[9]}]" for r in rows if int(r[1][-4:], 16) == port and r[9] != "0"}
        ours = map(str, (os.getpid(), *in_script.descendants(os.getpid())))
        return bool(users) and not any(users & in_script.open_files(pid) for pid in ours)

    leased = []
    real = ports.lease
    def watched(needs):
        lease = real(needs)
        leased.extend(lease.ports.values())
        return lease
    ports.lease = watched

    class Broken:
        def __getstate__(self):
            return {"any": 1}

        def __setstate__(self, state):
            raise RuntimeError("cannot be loaded")

    def work(rank, *args):
        return rank

    if __name__ == "__main__":
        for runtime in ("cpu", "jax"):
            for args in ((), (threading.Lock(),), (Broken(),)):
                try:
                    xmp.spawn(work, args, nprocs=2, runtime=runtime)
                except (TypeError, xmp.StartError):
                    pass
        busy = []
        for port in leased:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past TIME_WAIT
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    if not somebodys(port):
                        busy.append(port)
        in_script.say(leases=len(leased), busy=busy, left=in_script.belongings()["processes"])
    """
    said = stage.run(source, timeout=60).said
    assert said["leases"] >= 6
    assert said["busy"] == []
    assert set(said["left"]) <= {"xmp-template", "xmp-script"}
