"""This host's address and interface towards the other hosts of its job: those that lead to host 0.

A host may have several networks, and gloo listens at the address of the host's *name* unless
GLOO_SOCKET_IFNAME names an interface (torch 2.13, ProcessGroupGloo.cpp, ``createDefaultDevice``).
That name may resolve to any of them, or to 127.0.1.1 (Debian), which no other host reaches.
"""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from xmp._os import log, signals
from xmp._os.names import Found, looked_up
from xmp._words.errors import StartError
from xmp._words.host_words import HostMeeting
from xmp._words.types import HostFacts

__all__ = ["facing"]

NAME_SECONDS = 60.0
"""Seconds for which host 0 waits until its own name is known: a pod's name reaches Kubernetes' DNS
seconds after the pod's start, and CoreDNS remembers for 30 s that it did not know the name (its
plugin "cache")."""
PAUSE_SECONDS = 1.0
_SIOCGIFADDR = 0x8915  # linux/sockios.h


def facing(known: HostFacts, meeting: HostMeeting, seconds: float) -> HostFacts:
    """Return the facts with the address and the interface of the route to host 0.

    Return them unchanged if host 0's name is not known: the other hosts ask again when they
    connect, and host 0 has by then waited 60 s, or ``seconds`` if that is less. Raises StartError
    if the name service does not answer within ``seconds``. Nothing is sent but questions to it.
    """
    own = _source(meeting, seconds)
    if own is None:
        return known
    return replace(known, address=own, interface=_interface(own))


def _found(meeting: HostMeeting, seconds: float) -> Found:
    """Return the name service's addresses of host 0; [] if it does not know the name."""
    begun = time.monotonic()
    patience = min(NAME_SECONDS, seconds) if meeting.index == 0 else 0
    while True:
        left = begun + seconds - time.monotonic()
        try:
            return looked_up(meeting.address, 9, socket.SOCK_DGRAM, left)
        except TimeoutError as error:
            if signals.from_handler(error):
                raise
            raise StartError(
                f"the name service of this host has not answered for {seconds:.3g} s what the "
                f"address of host 0 is, whose name is {meeting.address!r}. Set MASTER_ADDR to the "
                "IP address of host 0, on every host, or correct /etc/resolv.conf",
                code="XMP-H04",
            ) from None
        except OSError as error:
            if signals.from_handler(error):
                raise
            if time.monotonic() - begun + PAUSE_SECONDS >= patience:
                return []
        log.warning(
            "%s, the name of host 0 and so of this host, is not known here yet; waiting up to %d s",
            meeting.address, patience, once=True,
        )  # fmt: skip
        signals.interruptible(time.sleep, PAUSE_SECONDS)
        signals.deliver()


def _source(meeting: HostMeeting, seconds: float) -> str | None:
    """Return the address from which this host would call host 0; on host 0, its own."""
    for family, kind, protocol, _, place in _found(meeting, seconds):
        with socket.socket(family, kind, protocol) as probe:
            try:
                # Connecting a datagram socket only asks the routing table.
                probe.connect(place)
                return str(probe.getsockname()[0])
            except OSError as error:
                if signals.from_handler(error):
                    raise
    return None


def _interface(address: str) -> str:
    """Return the interface whose first address (any IPv6 address) this is; "" if there is none."""
    if address.startswith("127."):
        return "lo" if sys.platform == "linux" else "lo0"  # loopback has the whole net
    found = _of_ipv6 if ":" in address else _of_ipv4
    own = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return next((name for _, name in socket.if_nameindex() if own in found(name)), "")


def _of_ipv4(name: str) -> tuple[bytes, ...]:
    """Return an interface's first address: netdevice(7), the fields of ``struct ifreq``."""
    if sys.platform != "linux":
        return _by_psutil(name, socket.AF_INET)
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, name.encode().ljust(256, b"\0"))
        except OSError as error:
            if signals.from_handler(error):
                raise
            return ()  # it has none
    return (answer[20:24],)


def _of_ipv6(name: str) -> tuple[bytes, ...]:
    """Return an interface's addresses from the kernel's list for all interfaces."""
    if sys.platform != "linux":
        return _by_psutil(name, socket.AF_INET6)
    try:
        lines = Path("/proc/self/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError as error:
        if signals.from_handler(error):
            raise
        return ()
    fields = (line.split() for line in lines)
    return tuple(bytes.fromhex(each[0]) for each in fields if each[-1] == name)


def _by_psutil(name: str, family: socket.AddressFamily) -> tuple[bytes, ...]:
    import psutil  # xmp requires it on all systems but Linux

    its = psutil.net_if_addrs().get(name, ())
    plain = (each.address.partition("%")[0] for each in its if each.family == family)
    return tuple(socket.inet_pton(family, each) for each in plain)
