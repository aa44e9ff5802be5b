"""What user code calls, outside a replica and in one, as the engine installs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import xmp
from tests.support.stage import Script
from xmp import _inside
from xmp._inside import collectives
from xmp._plan.clusters.per_device import identity
from xmp._words.replica_info import ReplicaInfo


class FakeFramework:
    """Two replicas, of which the other one holds the same."""

    def __init__(self, info: ReplicaInfo) -> None:
        self.info = info
        self.calls: list[Any] = []

    def device(self) -> Any:
        return f"device {self.info.rank}"

    def init_process_group(self, backend: str | None = None, timeout: float | None = None) -> None:
        self.calls.append(("init", backend, timeout))

    def barrier(self) -> None:
        self.calls.append("barrier")

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        return value + value

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return (value, src)

    def all_gather(self, value: Any) -> Sequence[Any]:
        return (value,) * self.info.world_size

    def leave(self) -> None:
        pass


class FakeChannel:
    def __init__(self) -> None:
        self.keys: list[Any] = []

    def share(self, key: str, make: Callable[[], Any], owner: int | None = None) -> Any:
        self.keys.append((key, owner))
        return make()

    def turn(self, key: str) -> AbstractContextManager[None]:
        self.keys.append(key)
        return nullcontext()


def info(rank: int = 1, world: int = 2, **more: Any) -> ReplicaInfo:
    return ReplicaInfo(rank, rank, world, world, **{"runtime": "fake", **more})


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    yield
    _inside.uninstall()


# --- a world of one ----------------------------------------------------------------------------


def test_outside_a_replica_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # A launcher of which a launch was preempted stays so: an earlier test may have been one.
    monkeypatch.setattr(collectives, "_preempted", False)
    assert (_inside.rank(), _inside.local_rank(), _inside.host_index()) == (0, 0, 0)
    assert (_inside.world_size(), _inside.local_world_size()) == (1, 1)
    assert _inside.restart_count() == 0
    assert xmp.preempted() is False
    assert _inside.replica() == ReplicaInfo(0, 0, 1, 1)
    assert _inside.channel() is None


def test_a_program_that_has_launched_nothing_is_not_preempted(script: Script) -> None:
    assert script("import xmp\nprint(xmp.preempted())\n").out == "False\n"


def test_collectives_of_a_world_of_one_return_their_value() -> None:
    value = {"a": np.ones(3), "b": [1, "x"]}
    assert _inside.all_reduce(value, "mean") is value
    assert _inside.broadcast(value) is value
    assert _inside.all_gather(value) == [value]
    _inside.barrier()
    assert _inside.once_per_host(lambda: 5) == 5


def test_once_raises_what_its_function_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        _inside.once_per_host(lambda: 1 // 0)


@pytest.mark.parametrize("op", ["avg", "SUM", "", None, 3])
def test_an_unknown_op_is_refused_with_what_is_allowed(op: Any) -> None:
    with pytest.raises(ValueError, match="allowed are 'sum', 'mean', 'min', 'max', 'prod'"):
        _inside.all_reduce(1, op)


@pytest.mark.parametrize("src", [1, -1, 99])
def test_a_source_that_is_no_rank_is_refused(src: int) -> None:
    with pytest.raises(ValueError, match=f"src is {src}; this launch has the ranks 0 to 0"):
        _inside.broadcast("x", src)


@pytest.mark.parametrize("src", ["0", 0.0, None])
def test_a_source_that_is_no_integer_is_refused(src: Any) -> None:
    with pytest.raises(TypeError):
        _inside.broadcast("x", src)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), 1e12, timedelta(), timedelta(days=-1)])
def test_a_timeout_that_is_no_time_is_refused(timeout: Any) -> None:
    with pytest.raises(ValueError, match="seconds above 0"):
        _inside.init_process_group(timeout=timeout)


@pytest.mark.parametrize("timeout", ["30", True, [30]])
def test_a_timeout_of_another_type_is_refused(timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        _inside.init_process_group(timeout=timeout)


def test_a_number_as_backend_is_refused_with_what_is_meant() -> None:
    with pytest.raises(TypeError, match=r'name such as "gloo".*not float: 2\.5\..* timeout='):
        _inside.init_process_group(2.5)  # type: ignore[arg-type]


# --- a world that another launcher made --------------------------------------------------------

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}


@pytest.mark.parametrize("variables", [TORCHRUN, SLURM, OPEN_MPI, MPICH])
def test_another_launchers_world_is_described(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _inside.replica() == ReplicaInfo(5, 1, 8, 4, 1)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "3"},  # half of it
        {"RANK": "", "WORLD_SIZE": "8"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script: one process for all tasks
    ],
)
def test_what_does_not_say_both_rank_and_world_says_nothing(variables: dict[str, str]) -> None:
    assert identity(variables) == ReplicaInfo(0, 0, 1, 1)


def test_without_a_word_about_the_host_all_processes_are_here() -> None:
    assert identity({"RANK": "2", "WORLD_SIZE": "4"}) == ReplicaInfo(2, 2, 4, 4)


# --- inside ------------------------------------------------------------------------------------


def test_a_replica_is_what_was_installed() -> None:
    mine = info(restart_count=3, host_index=2)
    framework = FakeFramework(mine)
    _inside.install(mine, framework, FakeChannel())
    assert _inside.replica() is mine
    assert (_inside.rank(), _inside.world_size(), _inside.local_world_size()) == (1, 2, 2)
    assert (_inside.restart_count(), _inside.host_index()) == (3, 2)
    assert _inside.device() == "device 1"
    assert _inside.all_reduce(21) == 42
    assert _inside.broadcast("x", 1) == ("x", 1)
    assert _inside.all_gather("x") == ["x", "x"]
    _inside.init_process_group(timeout=2.5)
    _inside.init_process_group("gloo", timeout=timedelta(minutes=2))
    _inside.barrier()
    assert framework.calls == [("init", None, 2.5), ("init", "gloo", 120.0), "barrier"]


@pytest.mark.parametrize(
    "call",
    [
        lambda group: _inside.rank(group),
        lambda group: _inside.world_size(group),
        lambda group: _inside.barrier(group),
        lambda group: _inside.all_reduce(1, group=group),
        lambda group: _inside.broadcast(1, group=group),
        lambda group: _inside.all_gather(1, group=group),
        lambda group: _inside.local_group(),
    ],
)
def test_a_runtime_without_groups_says_so_by_name(call: Callable[[Any], Any]) -> None:
    mine = info(runtime="jax")
    _inside.install(mine, FakeFramework(mine), FakeChannel())
    with pytest.raises(RuntimeError, match="runtime 'jax' has no groups of some replicas"):
        call(object())


def test_uninstalled_it_is_outside_again() -> None:
    _inside.install(info(), None, None)
    _inside.uninstall()
    assert _inside.world_size() == 1


def test_threads_of_a_replica_are_that_replica() -> None:
    _inside.install(info(), None, None)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(_inside.rank()))
    thread.start()
    thread.join()
    assert seen == [1]


def test_two_replicas_may_be_threads_of_one_process() -> None:
    seen: dict[int, int] = {}
    meet = threading.Barrier(2)

    def replica(rank: int) -> None:
        _inside.install(info(rank), None, None)
        meet.wait(10)
        seen[rank] = _inside.rank()
        meet.wait(10)
        _inside.uninstall()

    threads = [threading.Thread(target=replica, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {0: 0, 1: 1}
    assert _inside.world_size() == 1


def test_once_counts_on_when_the_framework_is_there() -> None:
    channel = FakeChannel()
    _inside.install(info(), None, channel)
    _inside.once_per_host(lambda: 1)  # while the user's modules are imported
    _inside.settle(info(), FakeFramework(info()))
    _inside.once_per_host(lambda: 2)
    assert channel.keys == [("once_per_host/0/0", 0), ("once_per_host/0/1", 0)]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("barrier", ()), ("all_reduce", (1,)), ("broadcast", (1,)), ("all_gather", (1,))),
        ("init_process_group", ()),
    ],
)
def test_without_a_framework_a_collective_says_what_to_do(
    name: str, arguments: tuple[Any, ...]
) -> None:
    _inside.install(info(), None, FakeChannel())
    with pytest.raises(RuntimeError, match=rf"xmp\.{name}\(\) needs a framework.*'fake'.*install"):
        getattr(_inside, name)(*arguments)
    assert _inside.device() == "cpu"  # the plan's own name


def test_rank_zero_only_runs_on_rank_zero() -> None:
    @_inside.rank_zero_only
    def save(path: str) -> str:
        """Save it."""
        return path

    assert save.__doc__ == "Save it."
    assert save("a") == "a"
    _inside.install(info(), None, None)
    assert save("a") is None


# --- once_per_host where another launcher made the world ---------------------------------------


class GatheringFramework(FakeFramework):
    """A host of two; what rank 0 holds is known."""

    zero: Any = None

    def all_gather(self, value: Any) -> Sequence[Any]:
        return (self.zero if self.info.rank else value, None)


def test_once_without_a_channel_goes_through_the_collectives() -> None:
    framework = GatheringFramework(info(0))
    _inside.install(info(0), framework, None)
    assert _inside.once_per_host(lambda: 5) == 5
    with pytest.raises(KeyError):
        _inside.once_per_host(lambda: {}["x"])
    _inside.uninstall()

    framework = GatheringFramework(info(1))
    _inside.install(info(1), framework, None)
    framework.zero = (True, 5)
    assert _inside.once_per_host(lambda: 1 // 0) == 5
    framework.zero = (False, KeyError("x"))
    with pytest.raises(KeyError):
        _inside.once_per_host(lambda: 5)


def test_a_fork_is_a_child_until_it_takes_over() -> None:
    """What a framework asks while a replica enters it is asked by the replica."""
    _inside.install(info(1), None, FakeChannel())
    assert _inside.whose_child() == ""
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = _inside.whose_child()
        _inside.take_over()
        os.write(said, f"{words} {_inside.whose_child()!r}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(heard, 1000).decode() == f"process {pid}, a child of rank 1, ''"
    os.close(heard)
    os.close(said)
