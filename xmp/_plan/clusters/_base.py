"""What the modules of this package return, and how they read variables."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from xmp._plan.numbers import MOST, is_number
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

__all__ = [
    "Cluster",
    "Place",
    "host_list",
    "index_of",
    "is_loopback",
    "is_no_hosts_own",
    "master",
    "nodes",
    "number",
    "one_on_each",
    "split_port",
    "tpu_environment",
]

LABEL = r"[A-Za-z0-9_-]{1,63}"  # RFC 1035, 2.3.4
NAME = rf"(?!-){LABEL}(\.{LABEL})*(?<!-)(:\d+(:[0-9.]+)?)?"
ADDRESS = "MASTER_ADDR"
PORT = "MASTER_PORT"
MOST_PORT = 65535
PORTS = f"1 to {MOST_PORT}; unset or 0 for the documented one"
NODES = "NNODES"
INTEGER = re.compile(r"[-+]?[0-9]+")
ELASTIC = re.compile(r"[0-9]+\s*:\s*[0-9]+")
EACH_ITSELF = (
    *("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "::1"),
    *("0.0.0.0", "::"),  # connecting to "any address" reaches this host: ip(7)
)
IPV6 = r"\[?[0-9A-Fa-f.]*:[0-9A-Fa-f:.]+\]?"
OF_MANY = re.compile(r"2(2[4-9]|3\d)(\.\d{1,3}){3}|ff[0-9a-f]{2}:[0-9a-f:.]+")
HOST = re.compile(f"{NAME}|{IPV6}")
ENTRY = re.compile(r"""\s*([A-Z0-9_]+)\s*:\s*['"]?(.*?)['"]?\s*""")  # TYPE: 'v5litepod-16'


@dataclass(frozen=True)
class Place:
    """One host whose facts are known, and its index among all hosts of the job."""

    index: int
    address: str
    facts: HostFacts


@dataclass(frozen=True)
class Cluster:
    """The hosts of one job, as found on one of them."""

    name: str
    """The scheduler, with the variables that were read."""
    index: int
    """The index of this host."""
    addresses: tuple[str, ...]
    """Of all hosts, in the order of their indices; empty strings where only host 0 is known."""
    coordinator: str
    """The address of host 0 for the others."""
    port: int = 0
    """The port that was fixed for host 0; 0 when none was."""
    job: str = ""
    """What the launcher that placed the hosts calls their job; empty where it has no name that is
    the same on all of them. An outer one's may be missing on some: mpirun in a batch job of Slurm
    starts the processes of its own host itself, and the others by srun or ssh."""


def number(
    env: Mapping[str, str], name: str, least: int = 0, most: int = MOST, allowed: str = ""
) -> int | None:
    """The variable as a number from ``least`` to ``most``; None where it is unset or empty.

    ``allowed`` says it in other words. Raises PlanError for another text.
    """
    text = env.get(name, "").strip()
    if not text:
        return None
    if is_number(text) and least <= int(text) <= most:
        return int(text)
    what = "is out of range" if INTEGER.fullmatch(text) else "is not a number"
    said = f"{name}={text!r} {what}"
    raise PlanError(f"{said}. Allowed: {allowed or f'{least} to {most}, or unset'}.")


def nodes(env: Mapping[str, str]) -> int | None:
    """NNODES, from 1; None where it is unset or empty. Raises PlanError, for a range too."""
    text = env.get(NODES, "").strip()
    if ELASTIC.fullmatch(text):
        raise PlanError(
            f"{NODES}={text!r} is a range, as torchrun's elastic jobs have. xmp joins a fixed "
            f"number of hosts: set {NODES} to that number, the same on every host."
        )
    return number(env, NODES, least=1)


def index_of(env: Mapping[str, str], name: str, size: str, count: int | None) -> int | None:
    """The index of this host in ``name``, below ``count``, the value of ``size``.

    None where it is unset or empty. Where ``count`` is not several hosts, any number is one.
    Raises PlanError.
    """
    if count is None or count < 2:
        return number(env, name)
    allowed = f"0 to {count - 1}"
    index = number(env, name, allowed=allowed)
    if index is not None and index >= count:
        raise PlanError(f"{name}={index} does not fit {size}={count}. Allowed: {allowed}.")
    return index


def one_on_each(
    env: Mapping[str, str], rank: str, size: str, per_host: str
) -> tuple[int, int] | None:
    """Index of this host and number of hosts, by a launcher's variables of these names.

    None unless it has started one process on each of several hosts. Raises PlanError.
    """
    count = number(env, size)
    index = index_of(env, rank, size, count)
    if index is None or count is None or count < 2 or number(env, per_host) != 1:
        return None
    return index, count


@functools.lru_cache(maxsize=64)
def host_list(text: str) -> tuple[str, ...] | None:
    """``"t1v-0,t1v-1"`` as names; None for an empty text or one that is not a list of hosts.

    Images of notebook services put a warning sentence there. Cached, since every host of a large
    slice lists all hosts.
    """
    entries = tuple(part.strip() for part in text.split(","))
    return entries if all(HOST.fullmatch(entry) for entry in entries) else None


def split_port(text: str) -> tuple[str, int]:
    """``host``, ``host:port`` or ``[v6]:port`` as host and port; 0 without a port."""
    found = re.fullmatch(r"\[([^]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.*)", text.strip())
    assert found is not None
    host = found[1] or found[3] or found[5]
    return host, int(found[2] or found[4] or 0)


def master(env: Mapping[str, str], otherwise: str = "", prefix: str = "") -> tuple[str, int]:
    """Address and port of host 0 by MASTER_ADDR and MASTER_PORT, which may have a ``prefix``.

    ``otherwise`` is the address where the variable is not set, 0 the port. Raises PlanError for an
    address that has a port, and for a port that is no number.
    """
    name = f"{prefix}{ADDRESS}"
    given = env.get(name, "").strip()
    host, its_port = split_port(given)
    if its_port:
        raise PlanError(
            f"{name}={given!r} has a port. Set {name}={host} and {prefix}{PORT}={its_port}."
        )
    port = number(env, f"{prefix}{PORT}", most=MOST_PORT, allowed=PORTS)
    return host or otherwise, port or 0


def is_loopback(host: str) -> bool:
    """Whether ``host`` means this host on every host."""
    name = host.lower()
    return name in EACH_ITSELF or name.startswith("127.") or name.endswith(".localhost")


def is_no_hosts_own(host: str) -> bool:
    """Whether ``host`` is an IP address that means many hosts: multicast, or broadcast to all.

    224.0.0.0/4 and ff00::/8 (RFC 5771, RFC 4291), 255.255.255.255 (RFC 919). Linux lets a server
    bind them, and no client can connect.
    """
    return host == "255.255.255.255" or bool(OF_MANY.fullmatch(host.strip("[]").lower()))


def tpu_environment(facts: HostFacts) -> dict[str, str]:
    """The TPU variables of this host: the environment's own, else those of the metadata server."""
    lines = map(ENTRY.fullmatch, facts.metadata.get("tpu-env", "").splitlines())
    metadata = {found[1]: found[2] for found in lines if found}
    if "WORKER_ID" in metadata:
        metadata.setdefault("TPU_WORKER_ID", metadata["WORKER_ID"])
    return {**metadata, **{k: v for k, v in facts.env.items() if v}}
