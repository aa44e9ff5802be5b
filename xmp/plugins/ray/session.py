"""This process's connection to Ray: whose it is, whether it is still the same, and how it ends."""

from __future__ import annotations

import atexit
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from xmp._os import signals
from xmp._processes.launcher import context
from xmp._words.errors import StartError, XmpError

from .answers import Connected

__all__ = [
    "Session", "connected_meanwhile", "end_before_ray", "outlives_its_task", "own_sigterm",
    "refuse_forked", "session",
]  # fmt: skip

Session = tuple[str, str]
_LEAVES = 2.0
"""Seconds that ``ray.shutdown`` of another thread may take."""


def session(ray: Any) -> Session | None:
    """Return the node and the job that this process is connected as; None for no connection.

    ``ray.shutdown`` and another ``ray.init`` make another one, even in the same cluster. What
    belongs to an earlier one must not be used: Ray ends the process, or waits for ever.
    """
    if not ray.is_initialized():
        return None
    found = ray.get_runtime_context()
    return found.get_node_id(), found.get_job_id()


def refuse_forked(ray: Any) -> None:
    """Raise StartError in a fork of a process that was connected: Ray's threads are not here."""
    listener = getattr(ray._private.worker.global_worker, "listener_thread", None)
    if ray.is_initialized() and listener is not None and not listener.is_alive():
        raise StartError(
            'engine="ray": this process is a fork of one that is connected to Ray, and Ray does '
            "not work in forks. Launch from the parent, or from a process that is no fork "
            '(subprocess, multiprocessing with "spawn")',
            code="XMP-H06",
        )


def outlives_its_task(ray: Any) -> bool:
    """Return whether this process, a worker of Ray's, goes on after the task which launches.

    With an actor, Ray ends all that it has made.
    """
    is_worker = ray._private.worker.global_worker.mode == ray.WORKER_MODE
    return is_worker and ray.get_runtime_context().get_actor_id() is None


@contextmanager
def connected_meanwhile(said: str) -> Iterator[None]:
    """Raise StartError for what Ray raises where another thread has called ``ray.shutdown``."""
    connected = Connected()
    try:
        yield
    except Exception as error:
        if isinstance(error, XmpError) or signals.from_handler(error) or not _ends(connected):
            raise
        raise StartError(
            f"{said}: the program has called ray.shutdown() while xmp waited for the hosts",
            code="XMP-H06",
        ) from error


def _ends(connected: Connected) -> bool:
    """Return whether this connection has ended, or does in a moment: that takes some time."""
    end = time.monotonic() + _LEAVES
    while connected.lives and time.monotonic() < end:
        time.sleep(0.01)
    return not connected.lives


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM: ``ray.init`` sets one of its own, which ends the process.

    A SIGTERM is a request to end in order, which replicas hear of (``xmp.preempted``).
    """
    before = signal.getsignal(signal.SIGTERM)
    yield
    if signals.in_main() and before is not None:
        signal.signal(signal.SIGTERM, before)


def end_before_ray(end: Callable[[], object]) -> None:
    """Wait for replicas at the end of this process, and call ``end``, before Ray disconnects.

    Ray does that in a handler of atexit, which the import of ray and ``ray.init`` register; the
    last that is registered runs first.
    """
    atexit.unregister(end)
    atexit.register(end)
    context.end_before_others()
