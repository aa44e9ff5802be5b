"""Queues, locks, pipes, sockets, shared memory and shared tensors as arguments."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest

from tests.support.launching import launch, never_returns
from tests.support.stage import Script
from tests.support.waiting import until

BESIDE_FORK = pytest.mark.parametrize("start", ["forkserver", "spawn"])


def contexts(method: str) -> Any:
    return multiprocessing.get_context("fork" if method == "fork" else "spawn")


def test_a_queue(method: str) -> None:
    queue = multiprocessing.get_context("spawn").Queue()

    def fn(rank: int, queue: Any) -> None:
        queue.put((rank, "x" * 100_000))

    context = launch(method, fn, queue, join=False)
    got = sorted(queue.get(timeout=10) for _ in range(2))
    assert [rank for rank, _ in got] == [0, 1]
    assert context.join() is True
    queue.close()
    queue.join_thread()


def test_what_was_put_in_a_queue_is_flushed_before_a_replica_ends(method: str) -> None:
    queue = multiprocessing.get_context("spawn").Queue()

    def fn(rank: int, queue: Any) -> None:
        for index in range(500):
            queue.put((rank, index))

    launch(method, fn, queue)
    got = sorted(queue.get(timeout=10) for _ in range(1000))
    assert got == sorted((rank, index) for rank in range(2) for index in range(500))
    queue.close()
    queue.join_thread()


def test_a_simple_queue_and_a_joinable_one(method: str) -> None:
    context = multiprocessing.get_context("spawn")
    simple, joinable = context.SimpleQueue(), context.JoinableQueue()
    simple.put("work")
    simple.put("work")

    def fn(rank: int, simple: Any, joinable: Any) -> str:
        got: str = simple.get()
        joinable.put(rank)
        return got

    assert list(launch(method, fn, simple, joinable)) == ["work", "work"]
    assert sorted(joinable.get(timeout=10) for _ in range(2)) == [0, 1]
    simple.close()
    joinable.close()
    joinable.join_thread()


def test_locks_and_what_is_built_on_them(method: str) -> None:
    context = multiprocessing.get_context("spawn")
    lock, rlock, semaphore = context.Lock(), context.RLock(), context.BoundedSemaphore(2)
    barrier, condition, event = context.Barrier(3), context.Condition(), context.Event()
    value, array = context.Value("i", 0), context.Array("d", 4)

    def fn(rank: int, things: Any) -> int:
        lock, rlock, semaphore, barrier, condition, event, value, array = things
        for _ in range(200):
            with lock:
                value.value += 1
        with rlock, rlock, semaphore, condition:
            array[rank] = rank + 0.5
        barrier.wait(20)
        if rank == 0:
            event.set()
        assert event.wait(20)
        return barrier.parties

    things = (lock, rlock, semaphore, barrier, condition, event, value, array)
    assert list(launch(method, fn, things, nprocs=3)) == [3, 3, 3]
    assert value.value == 600
    assert list(array) == [0.5, 1.5, 2.5, 0.0]
    assert event.is_set()


def test_an_event_that_the_launcher_sets(method: str) -> None:
    context = multiprocessing.get_context("spawn")
    go, ready = context.Event(), context.Semaphore(0)

    def fn(rank: int, go: Any, ready: Any) -> int:
        ready.release()
        assert go.wait(20)
        return rank

    launched = launch(method, fn, go, ready, join=False)
    assert ready.acquire(timeout=20)
    assert ready.acquire(timeout=20)
    assert launched.join(timeout=0) is False
    go.set()
    assert list(launched.results()) == [0, 1]


def test_objects_of_the_forkserver_context(method: str) -> None:
    value = multiprocessing.get_context("forkserver").Value("i", 0)

    def fn(rank: int, value: Any) -> None:
        with value.get_lock():
            value.value += 1

    launch(method, fn, value)
    assert value.value == 2


@BESIDE_FORK
@pytest.mark.parametrize("kind", ["Lock", "Queue", "Event", "Value"])
def test_objects_of_the_fork_context_are_refused_with_what_to_use(start: str, kind: str) -> None:
    context = multiprocessing.get_context("fork")
    thing = context.Value("i", 0) if kind == "Value" else getattr(context, kind)()
    with pytest.raises((TypeError, RuntimeError)) as caught:
        launch(start, lambda rank, thing: rank, thing)
    text = str(caught.value)
    assert 'get_context("spawn")' in text.replace("'", '"'), text
    assert "args[0]" in text


def test_objects_of_the_fork_context_work_under_fork() -> None:
    context = multiprocessing.get_context("fork")
    lock, queue, value = context.Lock(), context.Queue(), context.Value("i", 0)

    def fn(rank: int) -> None:
        with lock:
            value.value += 1
        queue.put(rank)

    def given(rank: int, lock: Any, queue: Any, value: Any) -> None:
        fn(rank)

    launch("fork", fn)
    launch("fork", given, lock, queue, value)
    assert value.value == 4
    assert sorted(queue.get(timeout=10) for _ in range(4)) == [0, 0, 1, 1]
    queue.close()
    queue.join_thread()


def test_a_manager(method: str) -> None:
    def fn(rank: int, shared: Any, things: Any, lock: Any) -> int:
        shared[f"rank {rank}"] = os.getpid()
        for _ in range(20):
            with lock:
                things.append(rank)
        return os.getpid()

    with multiprocessing.get_context("spawn").Manager() as manager:
        shared, things, lock = manager.dict(), manager.list(), manager.Lock()
        pids = list(launch(method, fn, shared, things, lock, nprocs=3))
        assert dict(shared) == {f"rank {rank}": pid for rank, pid in enumerate(pids)}
        assert sorted(things) == sorted([0, 1, 2] * 20)


def test_shared_memory_is_still_there_afterwards(method: str) -> None:
    block = SharedMemory(create=True, size=16)
    try:

        def fn(rank: int, block: Any) -> None:
            block.buf[rank] = rank + 1

        launch(method, fn, block)
        launch(method, fn, block, nprocs=3)
        assert list(block.buf[:3]) == [1, 2, 3]
        again = SharedMemory(name=block.name)
        assert again.buf[2] == 3
        again.close()
    finally:
        block.close()
        block.unlink()


def test_shared_memory_by_name(method: str) -> None:
    """Opened in a replica by its name: ended replicas must not have it deleted."""
    block = SharedMemory(create=True, size=16)
    try:

        def fn(rank: int, name: str) -> None:
            there = SharedMemory(name=name)
            there.buf[rank] = 9
            there.close()

        launch(method, fn, block.name)
        assert list(block.buf[:2]) == [9, 9]
        assert os.path.exists(f"/dev/shm/{block.name}")
    finally:
        block.close()
        block.unlink()


def test_a_pipe_in_both_directions(method: str) -> None:
    here, there = multiprocessing.get_context("spawn").Pipe()

    def fn(rank: int, there: Any) -> Any:
        if rank == 1:
            return None
        there.send("up")
        return there.recv()

    context = launch(method, fn, there, join=False)
    assert here.poll(20)
    assert here.recv() == "up"
    here.send({"a": 1})
    assert context.results()[0] == {"a": 1}
    here.close()
    there.close()


def test_end_of_file_when_the_last_replica_closes_a_pipe(method: str) -> None:
    """No other process may hold the writing end: not the supervisor, and not the template."""
    reader, writer = multiprocessing.get_context("spawn").Pipe(duplex=False)

    def fn(rank: int, writer: Any) -> None:
        writer.send(rank)
        writer.close()
        never_returns()  # alive, and without the pipe

    context = launch(method, fn, writer, join=False, grace=1)
    writer.close()
    try:
        got = []
        try:
            while reader.poll(15):
                got.append(reader.recv())
        except EOFError:
            got.append("end")
        assert sorted(got[:2]) == [0, 1]
        assert got[2:] == ["end"]
        assert context.join(timeout=0) is False
    finally:
        context.terminate()
        reader.close()


def test_end_of_file_when_a_replica_dies(method: str) -> None:
    reader, writer = multiprocessing.get_context("spawn").Pipe(duplex=False)

    def fn(rank: int, writer: Any) -> None:
        writer.send(rank)

    context = launch(method, fn, writer, join=False)
    writer.close()
    assert context.join() is True
    assert sorted([reader.recv(), reader.recv()]) == [0, 1]
    assert reader.poll(10)
    with pytest.raises(EOFError):
        reader.recv()
    reader.close()


def test_many_descriptors_in_one_argument(method: str) -> None:
    """More than one message can carry (250)."""
    pipes = [multiprocessing.get_context("spawn").Pipe(duplex=False) for _ in range(300)]

    def fn(rank: int, writers: Any) -> None:
        for index, writer in enumerate(writers):
            if index % 2 == rank:
                writer.send(index)

    launch(method, fn, [writer for _, writer in pipes])
    for index, (reader, writer) in enumerate(pipes):
        assert reader.poll(5), index
        assert reader.recv() == index
        reader.close()
        writer.close()


def test_a_socket(method: str) -> None:
    import socket

    here, there = socket.socketpair()

    def fn(rank: int, there: Any) -> None:
        there.sendall(b"x")

    launch(method, fn, there)
    there.close()
    assert here.recv(10) + here.recv(10) == b"xx"
    here.close()


def test_arguments_live_until_the_launch_has_ended(method: str) -> None:
    """The launcher drops its last reference at once; the queue must stay."""

    def fn(rank: int, go: Any, value: Any) -> int:
        assert go.wait(20)
        with value.get_lock():
            value.value += 1
        got: int = value.value
        return got

    context = multiprocessing.get_context("spawn")
    go = context.Event()
    launched = launch(method, fn, go, context.Value("i", 0), join=False)
    del fn
    threading.Timer(0.1, go.set).start()
    assert max(launched.results()) == 2
    until(lambda: threading.active_count() == 1)


TENSOR = """
import sys, time
import xmp

def fn(rank, tensor, model, event, weights=None):
    tensor[rank] = rank + 1
    with __import__("torch").no_grad():
        model.weight[rank] += 5
    weights["w"][rank] = 7
    assert event.wait(20)
    return tensor.tolist(), tensor.is_shared()

if __name__ == "__main__":
    import torch
    tensor, event = torch.zeros(2), torch.multiprocessing.get_context("spawn").Event()
    model, weights = torch.nn.Linear(3, 2), {"w": torch.zeros(2).share_memory_()}
    before = model.weight.detach().clone()
    context = xmp.spawn(fn, (tensor, model, event), nprocs=2, start_method=sys.argv[1],
                        runtime="cpu", join=False, kwargs={"weights": weights})
    if sys.argv[1] != "fork":
        end = time.monotonic() + 20
        while tensor.tolist() != [1, 2] or weights["w"].tolist() != [7, 7]:
            assert time.monotonic() < end, tensor
            time.sleep(0.01)
    event.set()
    results = context.results()
    if sys.argv[1] != "fork":
        assert list(results) == [([1.0, 2.0], True)] * 2, results
        assert torch.allclose(model.weight.detach(), before + 5)
    assert weights["w"].tolist() == [7, 7]
    print("fine")
"""


def test_tensors_in_arguments_are_shared_memory(method: str, script: Script) -> None:
    done = script(TENSOR, method)
    assert done.out == "fine\n", done
