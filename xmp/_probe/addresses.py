"""The addresses of this host, and whether a name is one of its own."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

__all__ = ["addresses_of", "is_here", "own_addresses"]

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IFREQ = 256
"""Bytes: more than a ``struct ifreq`` has on any platform (netdevice(7))."""


def addresses_of(host: str) -> tuple[str, ...]:
    """The IP addresses of a name, as the name service has them; of an address, itself.

    Raises OSError for a name that is not known.
    """
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    return tuple(dict.fromkeys(str(place[0]) for *_, place in found))


def is_here(address: str) -> bool:
    """Whether an IP address is one of this host's: the kernel binds a socket to no other."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)
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
    """This host's addresses and its name, for people; one interface may have more than is shown."""
    found = [*_of_interfaces(), *_of_version_6()]
    return tuple(dict.fromkeys((*found, socket.gethostname())))


def _of_interfaces() -> Iterator[str]:
    """The IPv4 address of each interface; on systems with other numbers, that of the name."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_IFREQ}s", name.encode()[:15])
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                yield socket.inet_ntoa(answer[20:24])


def _of_version_6() -> Iterator[str]:
    """The addresses in /proc/net/if_inet6, but those that hold on one link alone (fe80)."""
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as lines:
        for line in lines:
            text = line.split()[0]
            if not text.startswith("fe80"):
                yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(text))
