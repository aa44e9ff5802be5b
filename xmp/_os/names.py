"""Looks up names of hosts and connects to them, within a limit of time.

getaddrinfo(3) waits in C for name servers, for minutes where none answers (resolv.conf(5)), and
nothing ends it: no limit, no Ctrl-C. So a thread asks, and is left behind when the time is over.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import Any, TypeAlias

from . import signals

__all__ = ["SECONDS", "Found", "connected", "looked_up"]

SECONDS = 10.0
"""The limit of a look-up for which the user has set none."""
Found: TypeAlias = "list[tuple[Any, Any, int, str, tuple[Any, ...]]]"
"""What ``socket.getaddrinfo`` returns."""


def looked_up(host: str, port: int = 0, kind: int = 0, seconds: float = SECONDS) -> Found:
    """Look a host up with ``socket.getaddrinfo``, within ``seconds``.

    Raises OSError for a name that is not known, or cannot be one, and TimeoutError (also an
    OSError) where the name service does not answer.
    """
    if _is_address(host):
        return socket.getaddrinfo(host, port, type=kind)
    lookup = _Lookup(host, port, kind)
    end = time.monotonic() + seconds
    try:
        while not lookup.ready(end - time.monotonic()):
            signals.deliver()
            if time.monotonic() >= end:
                raise TimeoutError(f"the name service has not answered for {seconds:.3g} s")
        return lookup.answer()
    finally:
        lookup.close()


def connected(host: str, port: int, seconds: float) -> socket.socket:
    """Connect as ``socket.create_connection``, with one limit for look-up and connection."""
    end = time.monotonic() + seconds
    error: OSError | None = None
    for *_, place in looked_up(host, port, socket.SOCK_STREAM, seconds):
        left = max(0.001, end - time.monotonic())
        try:
            return socket.create_connection(place[:2], left)
        except OSError as refusal:
            if signals.from_handler(refusal):
                raise
            error = refusal
    raise error or OSError(f"{host} has no address")


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return True
        except (OSError, ValueError):  # ValueError: a NUL, or no ASCII
            pass
    return False


class _Lookup:
    """One look-up, done by a daemon thread: the end of the program does not wait for it."""

    def __init__(self, *question: Any) -> None:
        self._question = question
        self._found: Found = []
        self._error: Exception | None = None
        self._asked, self._done = os.pipe()
        self._thread = threading.Thread(target=self._ask, name="xmp-lookup", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # of a limit
            self.close()
            os.close(self._done)
            raise OSError(f"no thread could be started for its look-up: {error}") from None

    def _ask(self) -> None:
        host, port, kind = self._question
        try:
            self._found = socket.getaddrinfo(host, port, type=kind)
        except (OSError, UnicodeError) as error:
            self._error = error
        finally:
            os.close(self._done)

    def ready(self, seconds: float) -> bool:
        """Wait that long for an answer; return False without one, earlier if a signal has come."""
        poller = select.poll()
        poller.register(self._asked, select.POLLIN)
        left = signals.step(max(0.0, seconds)) or 0.0
        return bool(signals.interruptible(poller.poll, left * 1000))

    def answer(self) -> Found:
        self._thread.join()  # it has nothing left to do; a fork finds one thread
        if isinstance(self._error, UnicodeError):  # an empty label, or one of more than 63 letters
            raise socket.gaierror(socket.EAI_NONAME, f"no name of a host: {self._error}")
        if self._error is not None:
            raise self._error
        return self._found

    def close(self) -> None:
        os.close(self._asked)
