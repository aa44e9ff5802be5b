"""The addresses of this host, and whether a name is one of its own."""

from __future__ import annotations

import socket

from xmp._os.names import looked_up

__all__ = ["addresses_of", "is_here", "own_addresses"]


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
