"""``xmp.launch``: ``spawn``, or the function here where another launcher has started this process.

For Slurm and MPI two processes get the variables that these set; of torchrun's own processes is
tests/frameworks/test_under_torchrun.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

import xmp
from tests.support.stage import Python
from xmp import _inside
from xmp._os.ports import lease
from xmp._words.types import PortNeed

ONE = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
ENVIRONMENTS = {
    "Slurm": (
        *("SLURM_PROCID", "SLURM_LOCALID"),
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
        | {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_ID": "7"},
    ),
    "Open MPI": (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    ),
    "MPI": (
        *("PMI_RANK", "MPI_LOCALRANKID"),
        {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"},
    ),
}
"""By launcher: the names of rank and local rank, and what is the same in both processes."""

TRAIN = """
    import json, os, sys
    import xmp

    def train(rank, scale, shift=0):
        import torch
        import torch.distributed as dist
        there = dist.is_initialized()
        total = xmp.all_reduce(torch.tensor(float(rank + 1))).item()
        info = xmp.replica()
        drawn = torch.rand(1).item()
        return [rank, info.local_rank, info.world_size, xmp.world_size(), info.runtime,
                str(xmp.device()), there, total, scale * rank + shift, drawn]

    def trains():
        results = xmp.launch(train, (10,), kwargs={"shift": 5}, runtime="cpu", backend="gloo",
                             seed=3, start_method="spawn", grace=1)
        open(f"said-{results[0][0]}", "w").write(json.dumps(results[0]))
        assert list(results.by_rank) == [xmp.rank()]
        assert results.timeline.last_entered() > 0
        assert xmp.replica().runtime == ""
"""
IN_TURN = """
    def main():
        import torch

        for number, (folder, variables) in enumerate(json.loads(sys.argv[1])):
            pid = os.fork()
            if pid == 0:
                os.chdir(folder)
                os.environ.update(variables)
                trains()
                if number:  # an interpreter with torch takes a second to end: the first one does
                    os._exit(0)
                return
            assert os.waitpid(pid, 0)[1] == 0, folder

    if __name__ == "__main__":
        main()
"""


def write(folder: Path, source: str) -> str:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(source))
    return str(path)


def start(folder: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder, env={**os.environ, **env}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err[-3000:]
    return out, err


def said(folder: Path) -> list[Any]:
    return [json.loads((folder / f"said-{rank}").read_text()) for rank in range(2)]


def meetings(count: int) -> list[dict[str, str]]:
    """Where two processes meet: ports free a moment ago, as such launchers choose them."""
    needs = (PortNeed(f"store {i}", "listen", "127.0.0.1", 0, 29500) for i in range(count))
    with lease(tuple(needs)) as held:
        ports = [str(port) for port in held.ports.values()]
    assert len(set(ports)) == count
    both = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    return [{**both, "MASTER_PORT": port} for port in ports]


def check_said(folder: Path) -> None:
    results = said(folder)
    assert [result[:9] for result in results] == [
        [rank, rank, 2, 2, "cpu", "cpu", True, 3.0, 10 * rank + 5] for rank in range(2)
    ]
    assert results[0][9] == results[1][9]  # seed=


@pytest.fixture(scope="module")
def under_others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each launcher, with what two processes said in its environment.

    The two have a fork for each environment: to import torch is most of what each costs.
    """
    folder = tmp_path_factory.mktemp("others")
    path, places = write(folder, TRAIN + IN_TURN), meetings(len(ENVIRONMENTS))
    for launcher in ENVIRONMENTS:
        (folder / launcher).mkdir()
    started = []
    for i in range(2):
        own = [
            (launcher, {**both, **place, name: str(i), local_name: str(i)})
            for (launcher, (name, local_name, both)), place in zip(ENVIRONMENTS.items(), places)
        ]
        started.append(start(folder, path, json.dumps(own)))
    for process in started:
        ended(process)
    return folder


@pytest.mark.parametrize("launcher", ENVIRONMENTS)
def test_under_other_launchers(launcher: str, under_others: Path) -> None:
    check_said(under_others / launcher)


JAX = """
    import json, os
    import jax
    import xmp

    jax.config.update("jax_platforms", "cpu")
    where = f"127.0.0.1:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(where, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))

    def train(rank):
        return [rank, xmp.world_size(), xmp.all_reduce(rank + 1), xmp.replica().runtime]

    if __name__ == "__main__":
        results = xmp.launch(train, runtime="jax")
        open(f"said-{results[0][0]}", "w").write(json.dumps(results[0]))
        jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_jax_that_the_program_has_connected(tmp_path: Path) -> None:
    path = write(tmp_path, JAX)
    both = {**ONE, **meetings(1)[0]}
    started = [
        start(tmp_path, path, **{**both, "RANK": str(i), "LOCAL_RANK": str(i)}) for i in range(2)
    ]
    for process in started:
        ended(process)
    assert said(tmp_path) == [[rank, 2, 3, "jax"] for rank in range(2)]


REFUSED = """
    import multiprocessing
    import sys
    import xmp

    def fn(rank):
        return rank, xmp.world_size()

    def refusal(call, *args, **options):
        try:
            call(fn, *args, **options)
        except xmp.PlanError as error:
            return str(error)

    def refused():
        assert f"{sys.argv[1]} has started this process" in refusal(xmp.spawn)

    def refuses():
        refused()
        for nprocs in (1, 2):
            assert "call xmp.launch" in refusal(xmp.spawn, nprocs=nprocs, runtime="cpu")
        by_hand = xmp.launcher(fn, nprocs=1, runtime="cpu", world_size=2, master_ip="127.0.0.2")
        assert "call xmp.launch" in refusal(lambda fn: by_hand(0))
        child = multiprocessing.get_context("spawn").Process(target=refused)
        child.start()
        child.join()
        assert child.exitcode == 0
        # torchrun runs it with -u, where print writes the end of a line by itself.
        sys.stdout.write(f"{list(xmp.launch(fn))}\\n")
        xmp.start_processes(abs, nprocs=2)  # processes without a rank
"""
BY_ITSELF = """
    if __name__ == "__main__":
        refuses()
"""
BOTH_RANKS = ["[(0, 2)]", "[(1, 2)]"]


def test_spawn_is_refused_in_a_replica_of_xmp_run(tmp_path: Path, python: Python) -> None:
    command = ("-m", "xmp", "run", "-n", "2", write(tmp_path, REFUSED + BY_ITSELF), "xmp run")
    done = python(*command, cwd=tmp_path)
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == BOTH_RANKS


NESTED = """
    import os
    import xmp

    def innermost(rank):
        return rank, os.environ.get("XMP_NESTED")

    def fn(rank):
        return os.environ.get("XMP_NESTED"), list(xmp.spawn(innermost, nprocs=1, grace=1))

    if __name__ == "__main__":
        print(list(xmp.spawn(fn, nprocs=2)), flush=True)
"""


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_world_in_each_replica_of_xmp_run_if_the_user_says_so(
    count: str, tmp_path: Path, python: Python
) -> None:
    """A single replica need not ask. What the user has said goes no further than xmp run."""
    env = {"XMP_NESTED": "1"} if count != "1" else {}
    command = ("-m", "xmp", "run", "-n", count, write(tmp_path, NESTED))
    done = python(*command, cwd=tmp_path, env=env)
    assert done.code == 0, done.err
    assert done.out.splitlines() == [str([(None, [(0, None)])] * 2)] * int(count)


def fn(rank: int, scale: int = 1) -> tuple[int, int]:
    return rank * scale, xmp.world_size()


def test_without_another_launcher_it_is_spawn() -> None:
    assert list(xmp.launch(fn, (3,), nprocs=2, runtime="cpu")) == [(0, 2), (3, 2)]
    context = xmp.launch(fn, nprocs=2, runtime="cpu", join=False)
    assert list(context.results()) == [(0, 2), (1, 2)]
    assert list(xmp.launch(fn, nprocs=1, runtime="cpu")) == [(0, 1)]


INNER = """
    import xmp

    def fn(rank):
        return rank, xmp.world_size()

    def outer(rank):
        return list(xmp.launch(fn, nprocs=2, runtime="cpu"))

    if __name__ == "__main__":
        print(list(xmp.spawn(outer, nprocs=2, runtime="cpu")), flush=True)
"""


def test_in_a_replica_it_is_an_inner_launch(tmp_path: Path, python: Python) -> None:
    """In a program without torch: each replica's template imports what is loaded here."""
    done = python(write(tmp_path, INNER), cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out == f"{[[(0, 2), (1, 2)]] * 2}\n"


@pytest.fixture
def as_rank_1(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in ONE.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_the_function_runs_in_this_process(as_rank_1: pytest.MonkeyPatch) -> None:
    assert xmp.launch(lambda rank: os.getpid(), runtime="cpu")[0] == os.getpid()
    assert xmp.launch(fn, nprocs=2, runtime="cpu").by_rank == {1: (1, 2)}
    as_rank_1.setenv("NNODES", "1")  # overrides the refusal of spawn alone
    assert list(xmp.launch(fn, runtime="cpu")) == [(1, 2)]
    assert list(xmp.spawn(fn, nprocs=2, runtime="cpu")) == [(0, 2), (1, 2)]


@pytest.mark.usefixtures("as_rank_1")
def test_what_it_raises_is_the_users_own() -> None:
    def fails(rank: int) -> None:
        raise KeyError(rank)

    with pytest.raises(KeyError, match="1") as caught:
        xmp.launch(fails, runtime="cpu")
    assert caught.value.__cause__ is None
    assert xmp.replica().runtime == ""
    assert not _inside.in_a_replica()


@pytest.mark.usefixtures("as_rank_1")
@pytest.mark.parametrize(
    "option",
    [
        {"join": False}, {"devices": [0]}, {"env": {"A": "1"}}, {"threads": 2}, {"bind": True},
        {"start_timeout": 3}, {"timeout": 3}, {"hang_timeout": 3}, {"max_restarts": 1},
        {"log_dir": "logs"}, {"prefix": True}, {"show": "0"}, {"progress": True},
        {"events": "events.jsonl"},
    ],
    ids=lambda option: next(iter(option)),
)  # fmt: skip
def test_what_only_the_launcher_could_do_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(xmp.PlanError, match="another launcher has started this process") as caught:
        xmp.launch(print, runtime="cpu", **option)
    assert str(caught.value).startswith(next(iter(option)))


@pytest.mark.usefixtures("as_rank_1")
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"nprocs": 4}, xmp.PlanError, "has started 2 of its processes on this host"),
        ({"runtime": "jax"}, xmp.PlanError, r"distributed.initialize\(address, world_size"),
        ({"runtime": "nothing"}, xmp.PlanError, "runtime='nothing' is not known"),
        ({"backend": "gloo"}, xmp.PlanError, "not set MASTER_ADDR and MASTER_PORT. Set MASTER"),
        ({"backend": "nccl"}, xmp.PlanError, "backend='nccl' does not work with runtime 'cpu'"),
        ({"start_method": "thread"}, xmp.PlanError, "give one of forkserver, spawn, fork"),
        ({"args": 3}, TypeError, "args must be a tuple or a list"),
        ({"args": (1, 2)}, TypeError, "replicas call fn"),
        ({"seed": "3"}, TypeError, "seed must be a whole number"),
        ({"grace": -1}, xmp.PlanError, "grace=-1"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        xmp.launch(fn, **{"runtime": "cpu", **options})


@pytest.mark.usefixtures("as_rank_1")
def test_no_template_is_warmed_up_in_such_a_process() -> None:
    xmp.shutdown()
    before = psutil.Process().children()  # multiprocessing's resource tracker may be there
    xmp.preload("json")
    assert psutil.Process().children() == before
