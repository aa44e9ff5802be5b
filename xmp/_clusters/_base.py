"""What the modules of this package return, and how they read variables."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from xmp._errors import PlanError
from xmp._numbers import MOST, is_number
from xmp._types import HostFacts

__all__ = [
    "Cluster",
    "Place",
    "host_list",
    "is_loopback",
    "master",
    "number",
    "split_port",
    "tpu_environment",
]

NAME = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(:\d+(:[0-9.]+)?)?"
ADDRESS = "MASTER_ADDR"
PORT = "MASTER_PORT"
EACH_ITSELF = (
    *("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "::1"),
    *("0.0.0.0", "::"),  # connecting to "any address" reaches this host: ip(7)
)
IPV6 = r"\[?[0-9A-Fa-f.]*:[0-9A-Fa-f:.]+\]?"
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


def number(env: Mapping[str, str], name: str) -> int | None:
    """The variable as a number from 0; None where it is unset or empty. Raises PlanError."""
    text = env.get(name, "").strip()
    if not text:
        return None
    if not is_number(text):
        allowed = f"0 to {MOST}, or unset"
        raise PlanError(f"{name}={text!r} is not a number. Allowed: {allowed}.")
    return int(text)


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
    return host or otherwise, number(env, f"{prefix}{PORT}") or 0


def is_loopback(host: str) -> bool:
    """Whether ``host`` means this host on every host."""
    name = host.lower()
    return name in EACH_ITSELF or name.startswith("127.") or name.endswith(".localhost")


def tpu_environment(facts: HostFacts) -> dict[str, str]:
    """The TPU variables of this host: the environment's own, else those of the metadata server."""
    lines = map(ENTRY.fullmatch, facts.metadata.get("tpu-env", "").splitlines())
    metadata = {found[1]: found[2] for found in lines if found}
    if "WORKER_ID" in metadata:
        metadata.setdefault("TPU_WORKER_ID", metadata["WORKER_ID"])
    return {**metadata, **{k: v for k, v in facts.env.items() if v}}
