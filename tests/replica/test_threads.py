"""Replicas that are threads of one process, as on TPU v2 and v3."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.waiting import until
from xmp import _inside
from xmp._calls import host as _host
from xmp._inside import collectives
from xmp._inside.script_runs import ScriptRun, run_in_replica
from xmp._plan import runtimes
from xmp._processes import Call
from xmp._processes.launcher.launch_registry import preempt_all
from xmp._processes.launcher.preemption import Sigterm
from xmp._processes.messages.thread_replicas import by_process, count, spread
from xmp._words.types import HostFacts, HostPlan, ReplicaPlan, Request, Settings

FRAMEWORK = """
class Pair:
    def __init__(self, info):
        self.info = info

    def device(self):
        return f"device of {self.info.rank}"

    def beside(self, info):
        return Pair(info)

    def leave(self):
        pass

enter = Pair
"""
ALONE = """
class Alone:
    def __init__(self, info):
        pass

    def leave(self):
        pass

enter = Alone
"""


class Pairs(runtimes.Runtime):
    """Two replicas in each process."""

    name = "pairs"
    framework = "framework_of_pairs"

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> runtimes.Fit:
        return runtimes.Fit(4, (2, 4), "2 pairs")

    def share(self, job: runtimes.Job, place: runtimes.Place, local: int) -> runtimes.Share:
        settings = {"threads_per_process": "2"}
        return runtimes.Share({}, f"bead:{local}", settings, local // 2)


@pytest.fixture(autouse=True)
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "framework_of_pairs.py").write_text(FRAMEWORK)
    (tmp_path / "framework_alone.py").write_text(ALONE)
    monkeypatch.syspath_prepend(str(tmp_path))
    runtimes.register(Pairs())
    yield
    runtimes.unregister("pairs")
    sys.modules.pop("framework_of_pairs", None)


def launch(method: str, fn: Any, *args: Any, nprocs: int = 4) -> Any:
    with xmp.spawn(
        fn, args, nprocs=nprocs, runtime="pairs", start_method=method, join=False, grace=1.0
    ) as context:
        assert context.join(timeout=60)
        return context.results()


# --- the plan ----------------------------------------------------------------------------------


def test_one_entry_for_each_process() -> None:
    plans = tuple(ReplicaPlan(i, i, i // 2, device=f"d{i}", threads=2, cpus=(i,)) for i in range(4))
    host = by_process(HostPlan(0, "here", plans))
    others = [[each.rank for each in p.thread_replicas] for p in host.replicas]
    assert ([p.rank for p in host.replicas], others) == ([0, 2], [[1], [3]])
    assert [(p.threads, p.cpus) for p in host.replicas] == [(4, (0, 1)), (4, (2, 3))]
    assert count(host.replicas) == 4
    assert spread(host.replicas[1], None) == {2: None, 3: None}
    apart = HostPlan(0, "here", tuple(ReplicaPlan(i, i, i) for i in range(3)))
    assert by_process(apart) == apart


# --- in the threads ----------------------------------------------------------------------------


def who(rank: int, word: str) -> tuple[Any, ...]:
    info = xmp.replica()
    return (
        rank, xmp.rank(), xmp.local_rank(), xmp.world_size(), xmp.local_world_size(),
        xmp.device(), info.device, os.getpid(), word, threading.current_thread().name,
    )  # fmt: skip


def test_each_thread_is_a_replica(method: str) -> None:
    results = launch(method, who, "word")
    for rank, found in enumerate(results):
        assert found[:7] == (rank, rank, rank, 4, 4, f"device of {rank}", f"bead:{rank}")
        assert found[8:] == ("word", f"xmp-replica-{rank}")
    pids = [found[7] for found in results]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert sorted(results.by_rank) == [0, 1, 2, 3]
    assert all(results.timeline[rank].seconds()["entered"] > 0 for rank in range(4))


def once_and_turns(rank: int, log: str) -> tuple[Any, ...]:
    values = [xmp.once_per_host(lambda i=i: (i, rank)) for i in range(20)]
    serial = xmp.MpSerialExecutor()
    for _ in range(5):
        serial.run(lambda: _alone(log))
    channel = _inside.channel()
    assert channel is not None
    first = channel.share("the first one", lambda: rank)
    return values, first


def _alone(log: str) -> None:
    os.close(os.open(log, os.O_CREAT | os.O_EXCL))
    time.sleep(0.001)
    os.unlink(log)


def test_once_and_turns_hold_for_threads_too(method: str, tmp_path: Path) -> None:
    results = launch(method, once_and_turns, str(tmp_path / "held"))
    assert len({first for _, first in results}) == 1
    assert [values for values, _ in results] == [[(i, 0) for i in range(20)]] * 4


class Model:
    def __init__(self) -> None:
        self.moved_to: list[str] = []

    def to(self, device: str) -> Model:
        self.moved_to.append(device)
        return self


WRAPPED = xmp.MpModelWrapper(Model())


def moved(rank: int) -> list[str]:
    model = WRAPPED.to(xmp.device())
    assert WRAPPED.to(xmp.device()) is model
    return model.moved_to


def test_each_thread_has_its_own_copy_of_a_wrapped_model(method: str) -> None:
    assert list(launch(method, moved)) == [[f"device of {rank}"] * 2 for rank in range(4)]


# --- ends --------------------------------------------------------------------------------------


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where replicas note how far they are; nothing else is there."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def steps(rank: int, marks: str) -> int:
    count = 0
    while not xmp.preempted():
        count += 1
        time.sleep(0.002 * (rank + 1))
        if rank == 1 and count == 3:
            return -1  # the thread ends, its process does not
        if count == 5:
            Path(marks, str(rank)).touch()
    return count


def test_threads_agree_on_their_end(
    method: str, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "_preempted", False)
    monkeypatch.setattr(Sigterm, "carry_out", lambda *_: None)  # it would end this process
    context = xmp.spawn(
        steps, (str(marks),), nprocs=4, runtime="pairs", start_method=method, join=False
    )
    until(lambda: len(os.listdir(marks)) == 3, 30)
    preempt_all()
    first, gone, *rest = context.results()
    assert gone == -1
    assert rest == [first] * 2
    assert first >= 5
    assert xmp.preempted() is True


def fails(rank: int, how: str, marks: str) -> int:
    if rank != 3:
        Path(marks, str(rank)).touch()
        threading.Event().wait()
    until(lambda: len(os.listdir(marks)) == 3, 30)
    if how == "raise":
        raise ValueError("three it was")
    if how == "exit":
        raise SystemExit(5)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.parametrize("how", ["raise", "exit", "kill"])
def test_a_failing_thread_ends_all(method: str, marks: Path, how: str) -> None:
    with pytest.raises(xmp.ReplicaError) as raised:
        launch(method, fails, how, str(marks))
    text = str(raised.value)
    if how == "raise":
        assert text.startswith("rank 3 of 4 (bead:3, pid "), text
        assert "three it was" in text
        assert isinstance(raised.value.__cause__, ValueError)
        assert raised.value.local_rank == 3
    else:
        assert text.startswith("rank 2 of 4 (bead:2, "), "a process ends with all its replicas"
        assert ("exit code 5" if how == "exit" else "SIGKILL") in text


def leaves(rank: int) -> int:
    if rank == 1:
        sys.exit()
    return rank


def test_an_exit_with_success_has_no_result(method: str) -> None:
    assert list(launch(method, leaves)) == [0, None, 2, 3]


def test_a_framework_that_knows_no_threads(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pairs, "framework", "framework_alone")
    with pytest.raises(xmp.ReplicaRaised, match="planned several replicas for one process"):
        launch(method, leaves)


def speaks(rank: int) -> None:
    os.write(1, f"I am {rank}\n".encode())  # two threads' prints may mix


def test_what_one_process_writes_is_of_its_replicas_together(
    method: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"log_dir": tmp_path, "prefix": "[{rank}] ", "show": [3]}
    xmp.spawn(speaks, runtime="pairs", start_method=method, **options)
    shown = capfd.readouterr().out.splitlines()
    assert sorted(shown) == ["[2,3] I am 2", "[2,3] I am 3"]
    for name, ranks in (("rank0-1", (0, 1)), ("rank2-3", (2, 3))):
        lines = (tmp_path / f"{name}.stdout.log").read_text().splitlines()
        assert sorted(lines) == [f"I am {rank}" for rank in ranks]
    with pytest.raises(xmp.PlanError, match=r"\{rank\} is text"):
        xmp.spawn(print, runtime="pairs", start_method=method, prefix="[{rank:02d}] ")


def test_scripts_are_refused_where_replicas_are_threads() -> None:
    call = Call(run_in_replica, (ScriptRun("path", "train.py"),), settings=Settings(program=True))
    with pytest.raises(xmp.PlanError, match="as threads, and a script needs a process"):
        _host.launch(Request(nprocs=4, runtime="pairs"), call, True)
