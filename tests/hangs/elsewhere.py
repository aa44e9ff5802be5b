"""Where a rank can be while the others wait for it: each function hangs in one way, for good."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import fcntl
import http.client
import logging
import multiprocessing
import os
import queue
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

__all__ = ["WAYS"]


def sleeps() -> None:
    time.sleep(1000)


def polls() -> None:
    while not os.path.lexists("/nonexistent/ready"):
        time.sleep(0.01)


def two_locks() -> None:
    first, second = threading.Lock(), threading.Lock()
    held = threading.Event()

    def other() -> None:
        with second:
            held.set()
            with first:
                pass

    with first:
        threading.Thread(target=other, daemon=True).start()
        held.wait()
        with second:
            pass


def empty_queue() -> None:
    queue.Queue().get()


def empty_queue_of_processes() -> None:
    multiprocessing.get_context("spawn").Queue().get()


def full_queue() -> None:
    waiting: queue.Queue[int] = queue.Queue(1)
    waiting.put(1)
    waiting.put(2)


def event() -> None:
    threading.Event().wait()


def condition() -> None:
    with (meeting := threading.Condition()):
        meeting.wait()


def semaphore_of_processes() -> None:
    multiprocessing.get_context("spawn").Semaphore(0).acquire()


def joins_a_thread() -> None:
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()


def blocking_socket() -> None:
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        http.client.HTTPConnection("127.0.0.1", server.getsockname()[1]).request("GET", "/")
        connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1])
        connection.request("GET", "/")
        connection.getresponse()


def select_of_nothing() -> None:
    ours, _theirs = socket.socketpair()
    select.select([ours], [], [])


def subprocess_that_sleeps() -> None:
    subprocess.run(["sleep", "1000"], check=True)


def output_of_a_subprocess() -> None:
    with subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()


def child_that_waits() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    os.waitpid(child, 0)


def file_lock() -> None:
    with tempfile.NamedTemporaryFile() as file:
        with Path(file.name).open("r+") as holder, Path(file.name).open("r+") as other:
            fcntl.flock(holder, fcntl.LOCK_EX)
            fcntl.flock(other, fcntl.LOCK_EX)


def fifo_without_a_writer() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/fifo")
        Path(folder, "fifo").read_bytes()


def empty_pipe() -> None:
    reader, _writer = os.pipe()
    os.read(reader, 1)


def locked_database() -> None:
    with tempfile.TemporaryDirectory() as folder:
        holder = sqlite3.connect(f"{folder}/db", isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        sqlite3.connect(f"{folder}/db", timeout=1000).execute("CREATE TABLE t (x)")


def busy_with_the_interpreter() -> None:
    while True:
        pass


def busy_without_the_interpreter() -> None:
    import hashlib

    data = bytes(64 << 20)
    while True:
        hashlib.sha256(data)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def logging_lock() -> None:
    handler = logging.StreamHandler(sys.stderr)
    held = threading.Event()

    def other() -> None:
        with contextlib.suppress(AttributeError):
            handler.acquire()
        held.set()
        time.sleep(1000)

    threading.Thread(target=other, daemon=True).start()
    held.wait()
    logger = logging.getLogger("held")
    logger.addHandler(handler)
    logger.warning("never written")


def import_lock() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "slow_module_of_a_hang.py").write_text("import time\ntime.sleep(1000)\n")
        sys.path.insert(0, folder)
        started = threading.Event()

        def other() -> None:
            started.set()

        threading.Thread(target=other, daemon=True).start()
        started.wait()
        while "slow_module_of_a_hang" not in sys.modules:
            time.sleep(0)
        import slow_module_of_a_hang  # noqa: F401


def handler_that_waits() -> None:
    def handler(number: int, frame: object) -> None:
        threading.Event().wait()

    signal.signal(signal.SIGUSR1, handler)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(1000)


def exhausted_pool() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: pool.submit(int).result()).result()


def event_loop() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    asyncio.run(wait())


def worker_that_died() -> None:
    """Wait, as a data loader without a time-out does, for a worker that has been killed."""
    context = multiprocessing.get_context("fork")
    items = context.Queue()
    worker = context.Process(target=time.sleep, args=(1000,), daemon=True)
    worker.start()
    worker.kill()
    worker.join()
    items.get()


def barrier_of_threads() -> None:
    threading.Barrier(2).wait()


WAYS = {
    each.__name__: each
    for each in (
        sleeps, polls, two_locks, empty_queue, empty_queue_of_processes, full_queue, event,
        condition, semaphore_of_processes, joins_a_thread, blocking_socket, silent_server,
        select_of_nothing, subprocess_that_sleeps, output_of_a_subprocess, child_that_waits,
        file_lock, fifo_without_a_writer, empty_pipe, locked_database, busy_with_the_interpreter,
        busy_without_the_interpreter, stopped, logging_lock, import_lock, handler_that_waits,
        exhausted_pool, event_loop, worker_that_died, barrier_of_threads,
    )
}  # fmt: skip
"""30 ways, by the name of the function that a report must name."""
