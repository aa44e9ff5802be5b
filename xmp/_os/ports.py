"""Leases of ports: xmp keeps them bound from planning until the program that needs them has them.

Binding a port, closing it and using its number later is a race. A lease keeps every socket until
the launch has ended, or until the replica that listens on it has it.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from xmp._words.errors import PortError
from xmp._words.types import PortNeed

from . import log, signals
from .names import looked_up

__all__ = ["PortLease", "lease"]

BACKLOG = 2048
"""The backlog that torch's store uses: all replicas of a large host may connect at once."""
PROBE_SECONDS = 0.5
RELEASE_SECONDS = 65.0
"""The kernel keeps an ended connection for 60 s (TCP_TIMEWAIT_LEN, include/net/tcp.h)."""
PAUSE_SECONDS = 0.1
LINGER_SECONDS = 2.0
"""How long a program's own processes may still serve a port after its end."""


class PortLease:
    """Leased ports: numbers by name, and the descriptors of the listening ones.

    A context manager; a second ``close`` does nothing.
    """

    def __init__(self, sockets: dict[str, socket.socket], listening: frozenset[str]) -> None:
        self._sockets = sockets
        self.ports = {name: sock.getsockname()[1] for name, sock in sockets.items()}
        self.descriptors = {name: sockets[name].fileno() for name in sorted(listening)}

    def handed_over(self) -> None:
        """Close our listening sockets: a replica has them, and clients must be refused after it."""
        for name in self.descriptors:
            if name in self._sockets:
                self._sockets.pop(name).close()

    def close(self) -> None:
        """Release all ports."""
        for sock in self._sockets.values():
            sock.close()

    def __enter__(self) -> PortLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lease(needs: Sequence[PortNeed]) -> PortLease:
    """Lease all ports of ``needs``, or none; raise PortError when one cannot be bound."""
    sockets: dict[str, socket.socket] = {}
    with signals.deferred():
        try:
            for need in needs:
                sockets[need.name] = _hold(need)
        except BaseException:
            for sock in sockets.values():
                sock.close()
            raise
    return PortLease(sockets, frozenset(n.name for n in needs if n.how == "listen"))


def _hold(need: PortNeed) -> socket.socket:
    need = _at_its_address(need)
    family = socket.AF_INET6 if ":" in need.address else socket.AF_INET
    if need.port:
        _refuse_foreign_address(need, family)
        _refuse_served(need, family)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        _bind(sock, need)
    except BaseException:
        sock.close()
        raise
    return sock


def _at_its_address(need: PortNeed) -> PortNeed:
    """Return the need with its name's address; one of IPv6 only where there is no other."""
    try:
        found = [str(entry[4][0]) for entry in looked_up(need.address)]
    except OSError as error:
        if signals.from_handler(error):
            raise
        raise _refused(need, error) from error
    if need.port:
        _refuse_loopback_name(need, found)
    return replace(need, address=next((each for each in found if ":" not in each), found[0]))


def _bind(sock: socket.socket, need: PortNeed) -> None:
    try:
        if need.how in ("hold", "reserve"):
            # gRPC binds beside this socket with the same option, which the kernel allows to
            # programs of one user only; with SO_REUSEADDR another user's could bind there too.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if need.how in ("reuse", "reserve") or (need.port and need.how != "hold"):
            # Connections of an earlier run to a fixed port may still be in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((need.address, need.port))
        except OSError as error:
            if not _bind_after_its_last_user(sock, need, error):
                raise
        if need.how == "listen":
            sock.listen(BACKLOG)
    except OSError as error:
        if signals.from_handler(error):
            raise
        raise _refused(need, error) from error


def _bind_after_its_last_user(sock: socket.socket, need: PortNeed, error: OSError) -> bool:
    """Bind a fixed port that only connections of ended programs block; False if it is in use."""
    if error.errno != errno.EADDRINUSE or not need.port:
        return False
    end, warned = time.monotonic() + RELEASE_SECONDS, False
    while _left_by_an_ended_program(need.port) and time.monotonic() < end:
        if _bound(sock, need):
            return True
        if not warned:
            what = "port %d at %s: the program that used it has just ended"
            log.warning(f"{what}; waiting until the kernel frees it", need.port, need.address)
            warned = True
        signals.interruptible(time.sleep, PAUSE_SECONDS)
        signals.deliver()
    return _bound(sock, need)


def _bound(sock: socket.socket, need: PortNeed) -> bool:
    """Bind ``sock`` with both options, then leave it its own; return False if that is refused."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((need.address, need.port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    if need.how == "hold":  # what binds from now on needs SO_REUSEPORT, and the same user
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return True


def _left_by_an_ended_program(port: int) -> bool:
    """Return whether the kernel has connections of this port that no process owns (inode 0)."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/self/net", name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[9] == "0":
                return True
    return False


def _said(need: PortNeed) -> str:
    purpose = f" ({need.purpose})" if need.purpose else ""
    return f"port {need.port or 'any'} at {need.address} for {need.name!r}{purpose}"


def _advice(need: PortNeed) -> str:
    """Return what to do about another program that uses the port."""
    if not need.moved_by:
        return "end that program, or choose another port."
    return (
        f"end that program (another job with the same {need.moved_by}?), or give all hosts of this "
        f"job another {need.moved_by}."
    )


def _refused(need: PortNeed, error: OSError) -> PortError:
    what = _said(need)
    if isinstance(error, (socket.gaierror, TimeoutError)):
        advice = "Set MASTER_ADDR to this host's IP address, on every host."
    elif error.errno == errno.EADDRINUSE:
        advice = f"Another program uses it: {_advice(need)}"
    elif error.errno == errno.EADDRNOTAVAIL:
        advice = "This host does not have that address"
        if need.moved_by:  # only host 0 has ports whose numbers the others know
            advice += (
                ", by which the other hosts are to reach host 0. Is this another host, with a "
                "wrong index (NODE_RANK)? If it is host 0, give an address of it (MASTER_ADDR), on "
                "every host"
            )
        advice += "."
    else:
        advice = "Choose another address or port."
    refused = PortError(f"{what} cannot be bound: {error.strerror or error}. {advice}")
    unknown = isinstance(error, (socket.gaierror, TimeoutError))
    if unknown or error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
        refused._elsewhere = need.name
    return refused


def _refuse_loopback_name(need: PortNeed, found: Sequence[str]) -> None:
    """Refuse a host's name that is loopback on that host: the other hosts would call in vain.

    Debian's installer writes the host's name beside 127.0.1.1 into /etc/hosts.
    https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution
    """
    loopback = all(a.startswith("127.") or a == "::1" for a in found)
    if need.address in (*found, "localhost") or not loopback:
        return
    known = ", ".join(sorted({*found}))
    raise PortError(
        f"the other hosts are to reach this one as {need.address!r} (for {need.name!r}), but here "
        f"that name is {known}, which is each host itself. Set MASTER_ADDR to the IP address of "
        "this host, on every host, or correct /etc/hosts.",
        code="XMP-H04",
    )


def _refuse_foreign_address(need: PortNeed, family: int) -> None:
    """Refuse the address of another host, where a program may well serve this very port.

    The kernel looks for the address before the port (``inet_bind``, net/ipv4/af_inet.c).
    """
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((need.address, 0))
        except OSError as error:
            if signals.from_handler(error):
                raise
            if error.errno == errno.EADDRNOTAVAIL:
                raise _refused(need, error) from error


def _refuse_served(need: PortNeed, family: int) -> None:
    """Refuse a port on which another program listens: with SO_REUSEPORT it would share the port.

    Only connecting finds such a server.
    """
    # Where launchers meet, a process of xmp serves, which soon notices the end of its program.
    end = time.monotonic() + (LINGER_SECONDS if need.purpose else 0.0)
    while _is_served(need, family):
        if time.monotonic() >= end:
            said = f"{_said(need)} is already served by another program: {_advice(need)}"
            refused = PortError(said)
            refused._elsewhere = need.name
            raise refused
        signals.interruptible(time.sleep, PAUSE_SECONDS)
        signals.deliver()


def _is_served(need: PortNeed, family: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        # End by a reset: the probe itself must not leave a connection that blocks the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            probe.connect((need.address, need.port))
            # If they are equal the kernel gave the probe this very port (TCP's simultaneous open).
            return bool(probe.getsockname() != probe.getpeername())
        except OSError:
            return False
