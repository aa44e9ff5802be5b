"""Names and addresses of hosts: looked up, connected to, and which are this host's own.

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

__all__ = ["SECONDS", "Found", "addresses_of", "connected", "is_here", "looked_up", "own_addresses"]

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


# --- addresses of this host ----------------------------------------------------------------------


def addresses_of(host: str) -> tuple[str, ...]:
    """Return the IP addresses of a name, as the name service has them; of an address, itself."""
    found = looked_up(host, kind=socket.SOCK_DGRAM)
    return tuple(dict.fromkeys(str(place[0]) for *_, place in found))


def is_here(address: str) -> bool:
    """Return whether an IP address is one of this host's: the kernel binds a socket to no other."""
    try:
        found = looked_up(address, kind=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_binds(family, place) for family, _, _, _, place in found)


def _binds(family: int, place: object) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(place)  # type: ignore[arg-type]
            return True
    except OSError:
        return False


def own_addresses() -> tuple[str, ...]:
    """Return this host's addresses and its name, for people; without link-local ones (fe80)."""
    name = socket.gethostname()
    return tuple(dict.fromkeys((*_of_interfaces(), *_named(name), name)))


def _of_interfaces() -> list[str]:
    """Return the addresses of all interfaces; none without psutil, which is optional on Linux."""
    try:
        import psutil
    except ModuleNotFoundError:
        return []
    return [
        each.address
        for of_interface in psutil.net_if_addrs().values()
        for each in of_interface
        if each.family in (socket.AF_INET, socket.AF_INET6) and not each.address.startswith("fe80")
    ]


def _named(name: str) -> tuple[str, ...]:
    try:
        return tuple(each for each in addresses_of(name) if is_here(each))
    except OSError:
        return ()
