"""Forked processes with real sockets that play replicas, below the engine.

For what concerns only the inside of a replica: no template, no supervisor, no plan.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import selectors
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xmp._types import ReplicaInfo

DEADLINE = 60.0


class FileChannel:
    """A channel to a supervisor that is only a folder: locks and pickles."""

    def __init__(self, folder: str, local_rank: int) -> None:
        self._folder = Path(folder)
        self._local_rank = local_rank

    def share(self, key: str, make: Callable[[], Any], owner: int | None = None) -> Any:
        """See ``xmp._inside.Channel``."""
        path = self._folder / key.replace("/", "_")
        while owner is not None and owner != self._local_rank and not path.exists():
            time.sleep(0.005)
        with self.turn(key + "-made"):
            if not path.exists():
                try:
                    outcome = True, make()
                except Exception as error:
                    outcome = False, error
                part = path.with_suffix(".part")
                part.write_bytes(pickle.dumps(outcome))
                part.rename(path)
                if outcome[0]:
                    return outcome[1]
        good, value = pickle.loads(path.read_bytes())
        if good:
            return value
        raise value

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """See ``xmp._inside.Channel``."""
        with open(self._folder / (key.replace("/", "_") + ".lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


Body = Callable[[ReplicaInfo, FileChannel], Any]


def gang(
    size: int,
    body: Body,
    *,
    settings: dict[str, str] | None = None,
    lease: str = "store",
    deadline: float = DEADLINE,
) -> list[Any]:
    """What ``body(info, channel)`` returned in each of ``size`` forked processes."""
    with tempfile.TemporaryDirectory() as folder, leased(lease) as listener:
        address, port = listener.getsockname()
        children = []
        for rank in range(size):
            info = ReplicaInfo(
                rank=rank,
                local_rank=rank,
                world_size=size,
                local_world_size=size,
                runtime="cpu",
                settings={"coordinator": f"{address}:{port}"} | (settings or {}),
                descriptors={lease: listener.fileno()} if rank == 0 and lease == "store" else {},
            )
            children.append(start(info, body, folder, (address, port), listener))
        return collect(children, deadline)


@contextmanager
def leased(how: str) -> Iterator[socket.socket]:
    """"store": listens; "coordinator": is only held."""
    with socket.socket() as sock:
        if how == "coordinator":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", 0))
        if how == "store":
            sock.listen()
        yield sock


def start(
    info: ReplicaInfo, body: Body, folder: str, address: tuple[str, int], listener: socket.socket
) -> tuple[int, int]:
    """(pid, pipe) of a child that runs ``body`` and writes its pickled outcome."""
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, out
    os.close(out)
    try:
        os.environ.update(
            RANK=str(info.rank),
            WORLD_SIZE=str(info.world_size),
            LOCAL_RANK=str(info.local_rank),
            LOCAL_WORLD_SIZE=str(info.local_world_size),
            MASTER_ADDR=address[0],
            MASTER_PORT=str(address[1]),
            GLOO_SOCKET_IFNAME="lo",
        )
        if not info.descriptors:
            listener.close()
        outcome = (True, body(info, FileChannel(folder, info.local_rank)))
    except BaseException:
        outcome = (False, traceback.format_exc())
    with open(into, "wb") as file:
        pickle.dump(outcome, file)
    os._exit(0)


def collect(children: list[tuple[int, int]], deadline: float) -> list[Any]:
    """The children's outcomes; all are ended and reaped whatever happens."""
    said: dict[int, bytes] = {out: b"" for _, out in children}
    end = time.monotonic() + deadline
    with selectors.DefaultSelector() as selector:
        for out in said:
            selector.register(out, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < end:
            for key, _ in selector.select(0.5):
                piece = os.read(key.fd, 1 << 20)
                said[key.fd] += piece
                if not piece:
                    selector.unregister(key.fd)
    results = []
    for pid, out in children:
        os.close(out)
        if not said[out]:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert said[out], f"replica {pid} said nothing within {deadline} s (status {status})"
        good, value = pickle.loads(said[out])
        assert good, value
        results.append(value)
    return results
