"""What an actor does on its host: it starts the agent, and passes packets between it and Ray.

It opens no packet. The files beside them (an image of a call, results) become pieces, each an
object of Ray's store, so that no file need fit into that store.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from xmp._processes.messages.connection import pair
from xmp._processes.system import interpreter, linux, processes

from . import files
from .driver_watch import DriverWatch
from .surroundings import for_agent

__all__ = ["ENDED", "OUTPUT", "PACKET", "STOPPED", "Relay", "received"]

PACKET, OUTPUT, ENDED, STOPPED = "packet", "output", "ended", "stopped"
_ROOM, _FILES = 128 * 1024, 64
_MOST = 8 << 20
"""Bytes that wait for the driver; then agent and replicas wait until it has read them."""
_END_WAIT = 5.0


@contextlib.contextmanager
def _nothing_blocked() -> Iterator[None]:
    """Ray starts raylets with SIGINT blocked (2.60, _private/services.py), which all inherit."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def received(end: socket.socket) -> tuple[bytes, list[int]] | None:
    """The next packet, and the files beside it; None at the end of the connection."""
    try:
        data, files, _, _ = socket.recv_fds(end, _ROOM, _FILES, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    return (data, files) if data else None


def _raylet() -> list[int]:
    """A descriptor that is readable when the raylet of this host has ended, if there can be one.

    Ray's own look, every second, takes a raylet that its parent has not waited for as alive (2.60,
    core_worker.cc, ExitIfParentRayletDies): then its cluster gives the host up after 13 s.
    """
    pid = os.environ.get("RAY_RAYLET_PID", "")
    descriptor = linux.open_pidfd(int(pid)) if pid.isdigit() else None
    return [] if descriptor is None else [descriptor]


class Relay:
    """The agent of this host, and what has come from it."""

    def __init__(self) -> None:
        ours, theirs = pair()
        self._socket = socket.socket(fileno=ours.detach())
        watched, self._lifeline = os.pipe()
        output, error = os.pipe(), os.pipe()
        numbers = theirs.fileno(), watched
        command = interpreter.fresh_interpreter("xmp._hosts.engines.agent", "main", *numbers)
        try:
            with _nothing_blocked():
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output[1], stderr=error[1],
                    pass_fds=numbers, env=for_agent(), start_new_session=True,
                )  # fmt: skip
        finally:
            theirs.close()
            for descriptor in (watched, output[1], error[1]):
                os.close(descriptor)
        self.pid = self._process.pid
        self._streams = {output[0]: 1, error[0]: 2}
        self._files = files.OfferedFiles()
        self.incoming = files.IncomingFiles()
        self._waiting: deque[tuple[int, tuple[Any, ...]]] = deque()
        """What has come, in this order, with its size."""
        self._size = 0
        self._changed = threading.Condition()
        self._watch: DriverWatch | None = None
        self._why = ""
        """Why this process has ended the agent."""
        threading.Thread(target=self._read_all, name="xmp-relay", daemon=True).start()

    # --- to the agent --------------------------------------------------------------------------

    def take(self, packets: Sequence[tuple[bytes, Sequence[int]]]) -> None:
        """Send these to the agent, with their files, which have come before or come soon."""
        for data, numbers in packets:
            try:
                found = [self.incoming.take(each) for each in numbers]
            except TimeoutError as error:
                self._put((ENDED, f"did not get what it needs: {error}"), 0)
                return
            owned = [each for each in found if each is not None]
            if len(owned) < len(found):
                continue  # its launch is over
            for descriptor in owned:
                linux.seal(descriptor)
            try:
                socket.send_fds(self._socket, [data], owned)
            except OSError:
                pass  # it has ended: the reader says so
            finally:
                for descriptor in owned:
                    os.close(descriptor)

    # --- from the agent ------------------------------------------------------------------------

    def reports(self, number: int, seconds: float, output: bool) -> list[tuple[Any, ...]]:
        """What has come, as soon as anything has, or nothing after so many seconds.

        ``number``: of this request. Without ``output``: up to the first that replicas have written.
        The driver's streams take no more for now, and what was reported after it waits, as with one
        host.
        """
        assert self._watch is not None
        self._watch.begins(number)
        try:
            return self._found(seconds, output)
        finally:
            self._watch.ends()

    def _found(self, seconds: float, output: bool) -> list[tuple[Any, ...]]:
        with self._changed:

            def comes() -> bool:
                return bool(self._waiting) and (output or self._waiting[0][1][0] != OUTPUT)

            self._changed.wait_for(comes, seconds)
            found: list[tuple[Any, ...]] = []
            while comes():
                size, item = self._waiting.popleft()
                self._size -= size
                found.append(item)
            self._changed.notify_all()
        return [*found, (STOPPED,)] if self.is_stopped() else found

    def piece(self, number: int, offset: int, size: int) -> pickle.PickleBuffer:
        """So many bytes of a file that ``reports`` has named."""
        return self._files.piece(number, offset, size)

    def _read_all(self) -> None:
        poller = select.poll()
        raylet = _raylet()
        for descriptor in (self._socket.fileno(), *self._streams, *raylet):
            poller.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poller.poll()]
            if {*ready} & {*raylet}:
                poller.unregister(*raylet)
                self._why = "was ended, as the raylet of its host has ended"
                self._kill()
            # What replicas have written comes before the message that they have ended.
            for descriptor in [each for each in self._streams if each in ready]:
                if not self._read_stream(descriptor):
                    poller.unregister(descriptor)
                    del self._streams[descriptor]
            if self._socket.fileno() in ready:
                for descriptor in self._streams:
                    while linux.ready(descriptor, select.POLLIN, 0):
                        if not self._read_stream(descriptor):
                            break
                if not self._read_packet():
                    break
        self._put((ENDED, self._how()), 0)

    def _read_stream(self, descriptor: int) -> bool:
        data = os.read(descriptor, _ROOM)
        if data:
            self._put((OUTPUT, self._streams[descriptor], data), len(data))
        return bool(data)

    def _read_packet(self) -> bool:
        packet = received(self._socket)
        if packet is None:
            return False
        data, descriptors = packet
        self._put((PACKET, data, [self._files.add(each) for each in descriptors]), len(data))
        return True

    def _put(self, item: tuple[Any, ...], size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._size < _MOST)
            self._waiting.append((size, item))
            self._size += size
            self._changed.notify_all()

    # --- the driver ----------------------------------------------------------------------------

    def watch(self, address: tuple[str, int]) -> None:
        """End the agent when a launch runs, and the driver's host can be reached no more."""
        self._watch = DriverWatch(address, self._cut_off)

    def rested(self, number: int) -> None:
        """The driver asks for no more reports until the next launch."""
        assert self._watch is not None
        self._watch.rested(number)

    def _cut_off(self) -> None:
        self._why = "was ended on its host, which was cut off from the driver"
        self._kill()

    # --- the agent's process -------------------------------------------------------------------

    def is_stopped(self) -> bool:
        return processes.is_stopped(self.pid)

    def _how(self) -> str:
        try:
            code = self._process.wait(_END_WAIT)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        if self._why:
            return self._why
        if code < 0:
            return f"was killed by {processes.signal_name(-code)}"
        return f"ended with exit code {code}"

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
