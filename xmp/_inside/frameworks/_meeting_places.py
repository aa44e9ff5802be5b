"""The places where replicas meet: whether an address leads to one, and waiting until it listens."""

from __future__ import annotations

import ipaddress
import os
import socket
import time

from xmp._os import signals
from xmp._os.names import connected, looked_up

__all__ = ["is_loopback", "leads_to", "meeting_places", "wait_for_listener"]


def meeting_places(coordinator: str) -> list[str]:
    """Return the "address:port" of JAX's coordinator, and of torch's store where it is set."""
    store = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    return [coordinator, *([":".join(map(str, store))] if all(store) else [])]


def is_loopback(place: str) -> bool:
    """Return whether an "address:port" is on this host alone."""
    host = _split(place)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def leads_to(given: str, place: str) -> bool:
    """Return whether ``given`` names ``place``; the host's own name counts as loopback too."""
    if given == place:
        return True
    (name, port), (host, number) = _split(given), _split(place)
    if port != number or not name:
        return False
    if is_loopback(given) and is_loopback(place):
        return True
    theirs, ours = _addresses(name), _addresses(host)
    if is_loopback(place):
        ours |= _addresses(socket.gethostname())
        if any(is_loopback(f"{address}:0") for address in theirs):  # Debian's 127.0.1.1
            return True
    return not ours.isdisjoint(theirs)


def _split(place: str) -> tuple[str, str]:
    host, _, port = place.rpartition(":")
    return host.strip("[]"), port


def _addresses(name: str) -> set[str]:
    """Return the addresses of a name; the resolver is asked for names only."""
    try:
        return {str(found[4][0]) for found in looked_up(name)}
    except OSError as error:
        if signals.from_handler(error):
            raise
        return set()


def wait_for_listener(address: str, seconds: float = 300.0) -> None:
    """Return when ``host:port`` listens, or after ``seconds``: then the client's time-out applies.

    gRPC retries a refused connection after 1 s, Paddle after 3 s.
    """
    host, _, port = address.rpartition(":")
    deadline, pause = time.monotonic() + seconds, 0.001
    while time.monotonic() < deadline:
        with signals.deferred():  # an error that a handler raises is no refused connection
            try:
                connected(host.strip("[]"), int(port), pause + 1).close()
                return
            except OSError as error:
                if signals.from_handler(error):
                    raise
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
