"""What children of a replica can say: workers of multiprocessing and of torch, in three contexts.

Handlers of signals and other threads of a replica have no order among its calls, either.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import failure, launch
from tests.support.stage import Stage
from tests.support.waiting import until
from xmp._inside import collectives
from xmp._processes.launcher.launch_registry import preempt_all
from xmp._processes.launcher.preemption import Sigterm

LOADERS = """
import os, sys
import in_script, torch, xmp
from torch.utils.data import DataLoader, Dataset

class Table(Dataset):
    def __init__(self, name, folder):
        self.name, self.folder, self.rows = name, folder, None

    def __len__(self):
        return 4

    def make(self):
        os.close(os.open(f"{self.folder}/{self.name}", os.O_CREAT | os.O_EXCL))  # once
        return [f"{self.name}{row}" for row in range(4)]

    def __getitem__(self, index):
        if self.rows is None:
            self.rows = xmp.once_per_host(self.make)
        return self.rows[index], xmp.rank(), xmp.world_size(), xmp.preempted(), os.getpid()

def rows(name, context, folder):
    data = Table(f"{name}-{context}-", folder)
    workers = 2 if context == "fork" else 1  # another one imports torch
    got = list(DataLoader(data, None, num_workers=workers, multiprocessing_context=context))
    own = {each[-1] for each in got} & {os.getpid()}
    return [each[0] for each in got], sorted({tuple(each[1:4]) for each in got}), len(own)

def fn(rank, folder):
    found = []
    for context in ("fork", "spawn"):
        found.append(rows("train", context, folder))
        found.append(xmp.once_per_host(lambda: f"{context} of {xmp.rank()}"))
    return found, [rows(name, "fork", folder) for name in ("train", "test")]

if __name__ == "__main__":
    in_script.say(results=list(xmp.spawn(fn, (sys.argv[1],), nprocs=2, runtime="cpu")))
"""


def test_workers_of_a_data_loader_share_a_table(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    results = stage.run(LOADERS, str(folder), timeout=240).said["results"]

    def rows(name: str, context: str, rank: int) -> list[Any]:
        return [[f"{name}-{context}-{row}" for row in range(4)], [[rank, 2, False]], 0]

    for rank, (found, last) in enumerate(results):
        assert last == [rows("train", "fork", rank), rows("test", "fork", rank)]
        for place, context in enumerate(("fork", "spawn")):
            first, of_parent = found[2 * place : 2 * place + 2]
            assert first == rows("train", context, rank)
            assert of_parent == f"{context} of 0", "the replica's calls are in order"


WORKERS = """
import multiprocessing, os, sys
import in_script, xmp

SERIAL = xmp.MpSerialExecutor()
CALLS = {name: getattr(xmp, name) for name in ("barrier", "all_gather")}
# By their names the template would import torch, which no call here comes to.

def error(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)

def alone(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    os.unlink(path)
    return "alone"

def speak(queue, context, folder, depth):
    if depth:
        run(context, speak, queue, context, folder, depth - 1)
    queue.put((
        xmp.rank(), xmp.local_rank(), xmp.world_size(), xmp.replica().device, xmp.preempted(),
        xmp.once_per_host(lambda: f"of {context}"), SERIAL.run(lambda: alone(f"{folder}/one")),
        str(os.getpid()) in error(CALLS["barrier"]) and error(lambda: CALLS["all_gather"](1)),
    ))
    xmp.heartbeat()

def dies(context, folder):
    def make():
        try:
            os.close(os.open(f"{folder}/dies-{context}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return "made by another"
        os._exit(1)
    return xmp.once_per_host(make)

def run(context, target, *args):
    child = multiprocessing.get_context(context).Process(target=target, args=args)
    child.start()
    return child

def fn(rank, context, folder):
    queue = multiprocessing.get_context(context).SimpleQueue()
    child = run(context, speak, queue, context, folder, 1)
    said = [queue.get(), queue.get()]
    child.join()
    children = [run(context, dies, context, folder) for _ in range(2)]
    for child in children:
        child.join()
    codes = [child.exitcode for child in children]
    return said, codes, xmp.once_per_host(lambda: rank), dies(context, folder)

if __name__ == "__main__":
    for context in sys.argv[3:]:
        arguments = context, sys.argv[2]
        results = xmp.spawn(
            fn, arguments, nprocs=2, runtime="cpu", start_method=sys.argv[1], hang_timeout=60
        )
        in_script.say(**{context: list(results)})
"""


def test_children_and_grandchildren_of_multiprocessing(
    stage: Stage, tmp_path: Path, method: str
) -> None:
    contexts = ("fork", "spawn", "forkserver")
    said = stage.run(WORKERS, method, str(tmp_path), *contexts, timeout=120).said
    for context in contexts:
        died = 0
        for rank, (spoken, codes, of_parent, made) in enumerate(said[context]):
            for child in spoken:
                *known, words = child
                assert known == [rank, rank, 2, "cpu", False, f"of {context}", "alone"]
                assert words.startswith("xmp.all_gather() was called in process ")
                assert f", a child of rank {rank}, and connects" in words
            died += sum(codes)
            assert (of_parent, made) == (0, "made by another")
        assert died == 1, "the others got what another has made"


# --- a child and its parent at one line -----------------------------------------------------------

SERIAL = xmp.MpSerialExecutor()


def alone(path: Path) -> None:
    path.touch(exist_ok=False)
    path.unlink()


def both_at_one_line(rank: int, folder: Path) -> tuple[list[int], int]:
    """Child and parent ask at the same time; the parent before the child exists, too."""
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def ask() -> int:
        for _ in range(10):
            SERIAL.run(lambda: alone(folder / "one"))
        return xmp.once_per_host(os.getpid)

    values = [ask()]
    child = multiprocessing.get_context("fork").Process(target=lambda: queue.put(ask()))
    child.start()
    values += [ask(), ask()]
    child.join()
    return values, queue.get()


def test_a_child_and_its_parent_do_not_take_each_others_answers(
    method: str, tmp_path: Path
) -> None:
    (values, made), other = launch(method, both_at_one_line, tmp_path, timeout=40)
    assert other == (values, made)
    assert len({*values}) == 1, "the first replica's"
    assert made not in values, "of a child"


# --- preemption ---------------------------------------------------------------------------------


def looks_in_a_child(rank: int, marks: str) -> tuple[int, int]:
    pid = os.fork()
    if pid == 0:
        until(xmp.preempted, 30)
        os._exit(7)
    steps, seen = 0, []
    thread = threading.Thread(target=lambda: seen.append(until(xmp.preempted, 30)))
    thread.start()
    while not xmp.preempted():
        steps += 1
        if steps == 3:
            Path(marks, str(rank)).touch()
    thread.join()
    assert seen == [True]
    return steps, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def unpreempted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_preempted", False)
    monkeypatch.setattr(Sigterm, "carry_out", lambda *_: None)  # it would end this process


def test_children_and_threads_see_that_the_launch_is_preempted(
    tmp_path: Path, unpreempted: None
) -> None:
    context = launch("forkserver", looks_in_a_child, str(tmp_path), join=False)
    until(lambda: len(os.listdir(tmp_path)) == 2, 30)
    preempt_all()
    (steps, code), other = context.results()
    assert code == 7
    assert other == (steps, 7), "what others ask does not count"


AHEAD = 500


def looks_in_a_thread_first(rank: int, marks: str) -> int:
    """Rank 0 has made more calls than the other one, and makes the next one late."""
    if rank == 0:
        thread = threading.Thread(target=xmp.preempted)
        thread.start()
        thread.join()
    steps = 0
    while not xmp.preempted():
        steps += 1
        if steps == (3 if rank else AHEAD):
            Path(marks, str(rank)).touch()
        if rank or steps >= AHEAD:
            time.sleep(0.002 if rank else 0.2)
    return steps


def test_a_replica_votes_though_a_thread_of_it_has_asked_first(
    tmp_path: Path, unpreempted: None
) -> None:
    context = launch("forkserver", looks_in_a_thread_first, str(tmp_path), join=False)
    until(lambda: len(os.listdir(tmp_path)) == 2, 30)
    preempt_all()
    first, second = context.results()
    assert first == second


# --- handlers and threads -------------------------------------------------------------------------


def within_a_handler(rank: int, handling: int, marks: str) -> tuple[Any, ...]:
    """The handler runs while this replica waits for the value, or makes it."""
    seen: list[str] = []
    over = Path(marks, "over")

    def handler(*_: Any) -> None:
        xmp.heartbeat()
        seen.append(xmp.once_per_host(lambda: "the handler's"))
        over.touch()

    def make() -> str:
        Path(marks, "in").touch()
        until(over.exists, 20)
        return "the function's"

    if rank == handling:
        signal.signal(signal.SIGUSR1, handler)
        raiser = threading.Thread(target=lambda: signals_when(Path(marks, "in")))
        raiser.start()
    values = xmp.once_per_host(make), xmp.once_per_host(lambda: "the next")
    return (*values, seen)


def signals_when(path: Path) -> None:
    until(path.exists, 20)
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.parametrize("handling", [0, 1])
def test_a_handler_asks_while_its_replica_does(handling: int, tmp_path: Path) -> None:
    results = launch("forkserver", within_a_handler, handling, str(tmp_path), timeout=40)
    for rank, found in enumerate(results):
        handled = ["the handler's"] if rank == handling else []
        assert found == ("the function's", "the next", handled)


def within_threads(rank: int) -> list[str]:
    """Threads of one replica ask before, those of the other after its own call."""
    seen: dict[int, str] = {}

    def ask(number: int) -> None:
        seen[number] = xmp.once_per_host(lambda: f"call {number}")

    def in_threads() -> None:
        for number in (0, 1):
            thread = threading.Thread(target=ask, args=(number,))
            thread.start()
            thread.join()

    calls = [in_threads, lambda: ask(2)]
    for call in calls if rank == 0 else reversed(calls):
        call()
    return [seen[number] for number in range(3)]


def test_threads_of_a_replica_do_not_shift_its_calls() -> None:
    want = ["call 0", "call 1", "call 2"]
    assert [*launch("forkserver", within_threads, timeout=40)] == [want] * 2


def runs_within_itself(rank: int) -> list[str]:
    serial = xmp.MpSerialExecutor()
    with pytest.raises(RuntimeError, match="had the turn of the same object"):
        serial.run(lambda: serial.run(lambda: None))
    return [serial.run(lambda: "again")]


def test_a_turn_within_itself_is_an_error() -> None:
    assert [*launch("forkserver", runs_within_itself, timeout=40)] == [["again"]] * 2


# --- owners that do not call, and what is no Exception -------------------------------------------


def only_one_calls(rank: int) -> Any:
    return xmp.once_per_host(lambda: "never") if rank else None


def test_an_owner_that_left_without_the_call(method: str) -> None:
    error = failure(method, only_one_calls, timeout=40)
    words = "local rank 0, which runs the function for all of this host, has left its own function"
    assert words in str(error)
    assert isinstance(error, xmp.ReplicaRaised)
    assert error.rank == 1


def calls_within(rank: int) -> list[Any]:
    first = xmp.once_per_host(lambda: [rank, xmp.once_per_host(lambda: "within")])
    return [first, xmp.once_per_host(lambda: "after")]


def test_a_call_within_the_function_shifts_nothing() -> None:
    assert [*launch("forkserver", calls_within, timeout=40)] == [[[0, "within"], "after"]] * 2


def cancelled(rank: int) -> str:
    async def never() -> None:
        raise asyncio.CancelledError("stop")

    try:
        xmp.once_per_host(lambda: asyncio.run(never()))
    except asyncio.CancelledError as error:
        return repr(error)
    return "not raised"


def test_all_get_what_is_no_exception(method: str) -> None:
    results = [*launch(method, cancelled, timeout=40)]
    assert all(text.startswith("CancelledError(") for text in results), results
