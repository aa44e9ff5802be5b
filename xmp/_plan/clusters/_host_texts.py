"""How hosts are written in variables: names, addresses with ports, lists of nodes."""

from __future__ import annotations

import functools
import re

from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError

__all__ = ["HOST", "expand", "host_list", "is_loopback", "is_no_hosts_own", "split_port"]

LABEL = r"[A-Za-z0-9_-]{1,63}"  # RFC 1035, 2.3.4
NAME = rf"(?!-){LABEL}(\.{LABEL})*(?<!-)(:\d+(:[0-9.]+)?)?"
IPV6 = r"\[?[0-9A-Fa-f.]*:[0-9A-Fa-f:.]+\]?"
HOST = re.compile(f"{NAME}|{IPV6}")
EACH_ITSELF = (
    *("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "::1"),
    *("0.0.0.0", "::"),  # connecting to "any address" reaches this host: ip(7)
)
OF_MANY = re.compile(r"2(2[4-9]|3\d)(\.\d{1,3}){3}|ff[0-9a-f]{2}:[0-9a-f:.]+")


def is_loopback(host: str) -> bool:
    """Return whether ``host`` means this host on every host."""
    name = host.lower()
    return name in EACH_ITSELF or name.startswith("127.") or name.endswith(".localhost")


def is_no_hosts_own(host: str) -> bool:
    """Return whether ``host`` is an IP address that means many hosts: multicast, or broadcast.

    224.0.0.0/4 and ff00::/8 (RFC 5771, RFC 4291), 255.255.255.255 (RFC 919). Linux lets a server
    bind them, and no client can connect.
    """
    return host == "255.255.255.255" or bool(OF_MANY.fullmatch(host.strip("[]").lower()))


def split_port(text: str) -> tuple[str, int]:
    """Split ``host``, ``host:port`` or ``[v6]:port`` into host and port; 0 without a port."""
    found = re.fullmatch(r"\[([^]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.*)", text.strip())
    assert found is not None
    host = found[1] or found[3] or found[5]
    return host, int(found[2] or found[4] or 0)


@functools.lru_cache(maxsize=64)
def host_list(text: str) -> tuple[str, ...] | None:
    """Return ``"t1v-0,t1v-1"`` as names; None for an empty text or one that is no list of hosts.

    Images of notebook services put a warning sentence there. Cached, since every host of a large
    slice lists all hosts.
    """
    entries = tuple(part.strip() for part in text.split(","))
    return entries if all(HOST.fullmatch(entry) for entry in entries) else None


def expand(text: str, variable: str = "") -> tuple[str, ...]:
    """Return the nodes of a Slurm list in its order: ``"n[08-10,12],x"`` is n08 n09 n10 n12 x.

    Raise PlanError, which names ``variable``, for one that is malformed.
    """
    entries = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(entries) != text:  # cut off inside brackets: the names of other hosts
        raise PlanError(
            f'{variable}: {text!r} is malformed. Allowed: "n[08-10,12],x".', code="XMP-P08"
        )
    names: list[str] = []
    for entry in entries:
        before, bracket, rest = entry.partition("[")
        if not bracket:
            names.append(entry)
            continue
        ranges, _, after = rest.partition("]")
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            if not (is_number(first) and is_number(last or first)):
                raise PlanError(
                    f'{variable}: {entry!r} is malformed. Allowed: "n[08-10,12],x".', code="XMP-P08"
                )
            for value in range(int(first), int(last or first) + 1):
                names += expand(f"{before}{value:0{len(first)}d}{after}", variable)
    return tuple(names)
