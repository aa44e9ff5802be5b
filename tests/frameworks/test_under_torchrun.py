"""What xmp is in the two processes of a real torchrun, which have a fork for each way to use it.

Each part says what it has found; to import torch is most of what a process costs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.frameworks.test_data_parallel_launchers import STEP, WANTED
from tests.launcher.test_launch import BOTH_RANKS, REFUSED, TRAIN, check_said, write
from tests.launcher.test_launcher_as_rank import DECORATED
from tests.support.in_script import TOKEN
from tests.support.stage import Outcome, Python, Stage
from tests.support.torchrun import torchrun

PARTS = """
    import os, sys
    import in_script, xmp

    def say(**facts):
        in_script.say(**{f"{name} {xmp.rank()}": fact for name, fact in facts.items()})

    def refuses():
        import refused
        refused.refuses()
        say(variables=dict(os.environ))

    def trains():
        import train
        train.trains()

    def total(rank):
        return xmp.all_reduce(rank + 1)

    def repeated():
        say(repeated=[xmp.launch(total, backend="gloo")[0] for _ in range(5)])

    def calls():
        import decorated
        say(decorated=[decorated.train(3, scale=2) for _ in range(4)])

    def launch():
        import step
        say(launch=xmp.launch(step.fn, runtime="cpu", backend="auto")[0])

    def group(rank):
        import torch.distributed
        return torch.distributed.get_rank()

    def hook():
        def mine(*error):
            sys.stderr.write("mine\\n")

        sys.excepthook = mine
        xmp.launch(group, runtime="cpu", backend="auto")
        say(hook=sys.excepthook is mine)

    def script():
        import step
        xmp.init_process_group()
        say(script=step.step())

    def world():
        total = xmp.all_reduce(xmp.rank() + 1)
        made = xmp.once_per_host(lambda: f"made by {xmp.rank()}")
        say(world=[xmp.world_size(), total, made, xmp.broadcast(xmp.rank(), 1)])
        xmp.barrier()
        import torch.distributed
        torch.distributed.destroy_process_group()
"""
PROGRAM = """
    import os, pathlib, signal, sys
    from waiting import until

    def in_a_fork(parts, **variables):
        pid = os.fork()
        if pid == 0:
            os.environ.update(variables)
            import parts as known
            for name in parts.split():
                getattr(known, name)()
            if variables:  # an interpreter with all of torch takes 1.2 s to end: the first does
                sys.stdout.flush()
                os._exit(0)
            sys.exit()
        assert os.waitpid(pid, 0)[1] == 0, parts

    def serve(count, ports):
        # As torchrun's agent serves one; in that, a group would find the keys of another.
        from torch.distributed import TCPStore

        stores = [TCPStore("localhost", 0, None, True, wait_for_workers=False)
                  for _ in range(count)]
        ports.with_suffix(".new").write_text(" ".join(str(store.port) for store in stores))
        ports.with_suffix(".new").rename(ports)
        signal.pause()

    if __name__ == "__main__":
        first, *others = sys.argv[2:]
        in_a_fork(first)
        import torch._dynamo

        ports = pathlib.Path("ports")
        server = os.fork() if os.environ["RANK"] == "0" else None
        if server == 0:
            serve(len(others), ports)
        until(ports.exists, 60)
        for parts, port in zip(others, ports.read_text().split()):
            in_a_fork(parts, MASTER_PORT=port)
        if server is not None:  # rank 1 may still be in its last fork
            until(pathlib.Path("over").exists, 60)
            os.kill(server, signal.SIGKILL)
        else:
            pathlib.Path("over").touch()
        os._exit(0)
"""
RUNS = ("refuses trains repeated", "hook launch", "calls", "script", "world")
"""The first launch or call of a process forms the group, which stays: each has its own way. The
first process has no torch yet, and torchrun's own store."""


@pytest.fixture(scope="module")
def ran(shared_stage: Stage) -> Outcome:
    sources = {"train": TRAIN, "refused": REFUSED, "decorated": DECORATED, "step": STEP}
    for name, source in {**sources, "parts": PARTS, "program": PROGRAM}.items():
        shared_stage.write(source, f"{name}.py")
    command = ("program.py", "torchrun", *RUNS)
    done = torchrun(shared_stage.python, *command, cwd=shared_stage.folder, timeout=150)
    assert done.code == 0, f"{done.out}\n{done.err}"
    return done


def by_rank(done: Outcome, name: str) -> list[object]:
    return [done.said[f"{name} {rank}"] for rank in (0, 1)]


# --- launches ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("ran")
def test_under_a_real_torchrun(shared_stage: Stage) -> None:
    check_said(shared_stage.folder)


def test_spawn_is_refused_in_a_process_of_torchrun(ran: Outcome) -> None:
    lines = [line for line in ran.out.splitlines() if not line.startswith("@")]
    assert sorted(lines) == BOTH_RANKS


PLACED = """
    import xmp

    def fn(rank):
        return rank, xmp.world_size()

    if __name__ == "__main__":
        print(list(xmp.launch(fn, nprocs=2, runtime="cpu", timeout=60)), flush=True)
"""


def test_with_one_process_on_each_host_it_is_spawn(
    ran: Outcome, tmp_path: Path, python: Python
) -> None:
    """In torchrun's own variables, but for the counts."""
    said = ran.said["variables 0"].items()
    given = {name: value for name, value in said if name not in {*os.environ, TOKEN}}
    assert given["TORCHELASTIC_RUN_ID"]
    assert given.pop("OMP_NUM_THREADS") == "1"  # which it sets for two and more
    counts = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
    assert {given[name] for name in counts} == {"2"}
    placed = python(write(tmp_path, PLACED), cwd=tmp_path, env={**given, **counts})
    assert placed.code == 0, placed.err
    assert placed.out == "[(0, 2), (1, 2)]\n"


def test_launches_one_after_another_meet_each_time(ran: Outcome) -> None:
    """A second process group in torchrun's store finds the keys of the first, and may fail."""
    assert by_rank(ran, "repeated") == [[3] * 5] * 2


def test_under_torchrun_a_call_is_this_rank(ran: Outcome) -> None:
    """Four calls: torch's store would refuse a second group at the same address, now and then."""
    assert by_rank(ran, "decorated") == [[[[rank, 2, 6, 4]]] * 4 for rank in (0, 1)]


def test_a_launch_gives_the_excepthook_back(ran: Outcome) -> None:
    assert by_rank(ran, "hook") == [True, True]


# --- a script, and data_parallel -----------------------------------------------------------------


def test_under_torchrun_it_is_torchruns_world(ran: Outcome) -> None:
    assert by_rank(ran, "world") == [[2, 3, "made by 0", 1]] * 2


@pytest.mark.parametrize("program", ["script", "launch"])
def test_data_parallel_under_torchrun(program: str, ran: Outcome) -> None:
    assert by_rank(ran, program) == [WANTED] * 2
