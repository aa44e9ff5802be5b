"""What the modules of this package return, and how they read variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from xmp._plan.numbers import MOST, is_number
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._host_texts import split_port
from ._launcher import Launcher
from .launchers import BY_HAND

__all__ = [
    "MOST_PORT",
    "PORTS",
    "Cluster",
    "Place",
    "count",
    "index_of",
    "master",
    "nodes",
    "number",
    "only_first",
    "tpu_environment",
]

MOST_PORT = 65535
_DIGITS = 19  # of a number that a launcher sets; Python refuses to read 4,300
PORTS = f"1 to {MOST_PORT}; unset or 0 for the documented one"
INTEGER = re.compile(r"[-+]?[0-9]+")
ELASTIC = re.compile(r"[0-9]+\s*:\s*[0-9]+")
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
    by_call: bool = False
    """``launcher(world_size=…)`` names the hosts, and no variable overrides that."""


def number(
    env: Mapping[str, str], name: str, least: int = 0, most: int = MOST, allowed: str = ""
) -> int | None:
    """Return the variable as a number from ``least`` to ``most``; None where it is unset or empty.

    ``allowed`` says it in other words. Raise PlanError for another text.
    """
    text = env.get(name, "").strip()
    if not text:
        return None
    if is_number(text) and len(text) <= _DIGITS and least <= int(text) <= most:
        return int(text)
    what = "is out of range" if INTEGER.fullmatch(text) else "is not a number"
    said = f"{name}={text!r} {what}"
    raise PlanError(
        f"{said}. Allowed: {allowed or f'{least} to {most}, or unset'}.", code="XMP-P08"
    )


def count(env: Mapping[str, str], name: str) -> int | None:
    """Return the variable as a number; None where it has another text, which says nothing."""
    text = env.get(name, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def nodes(env: Mapping[str, str]) -> int | None:
    """Return NNODES, from 1; None where it is unset or empty. Raise PlanError, for a range too."""
    name = BY_HAND.hosts
    text = env.get(name, "").strip()
    if ELASTIC.fullmatch(text):
        raise PlanError(
            f"{name}={text!r} is a range, as torchrun's elastic jobs have. xmp joins a fixed "
            f"number of hosts: set {name} to that number, the same on every host.",
            code="XMP-P08",
        )
    return number(env, name, least=1)


def index_of(env: Mapping[str, str], name: str, size: str, count: int | None) -> int | None:
    """Return the index of this host in ``name``, below ``count``, the value of ``size``.

    None where it is unset or empty. Where ``count`` is not several hosts, any number is one.
    Raise PlanError for other texts.
    """
    if count is None or count < 2:
        return number(env, name)
    allowed = f"0 to {count - 1}"
    index = number(env, name, allowed=allowed)
    if index is not None and index >= count:
        raise PlanError(
            f"{name}={index} does not fit {size}={count}. Allowed: {allowed}.", code="XMP-P08"
        )
    return index


def master(
    env: Mapping[str, str], otherwise: str = "", launcher: Launcher = BY_HAND
) -> tuple[str, int]:
    """Return address and port of host 0 by the launcher's variables: MASTER_ADDR and MASTER_PORT.

    ``otherwise`` is the address where the variable is not set, 0 the port. Raise PlanError for an
    address that has a port, and for a port that is no number.
    """
    given = env.get(launcher.address, "").strip()
    host, its_port = split_port(given)
    if its_port:
        raise PlanError(
            f"{launcher.address}={given!r} has a port. Set {launcher.address}={host} and "
            f"{launcher.port}={its_port}.",
            code="XMP-P08",
        )
    port = number(env, launcher.port, most=MOST_PORT, allowed=PORTS)
    return host or otherwise, port or 0


def only_first(address: str, hosts: int) -> tuple[str, ...]:
    """Return the addresses of so many hosts, of which only that of host 0 is known."""
    return address, *[""] * (hosts - 1)


def tpu_environment(facts: HostFacts) -> dict[str, str]:
    """Return the TPU variables of this host: its own, else those of the metadata server."""
    lines = map(ENTRY.fullmatch, facts.metadata.get("tpu-env", "").splitlines())
    metadata = {found[1]: found[2] for found in lines if found}
    if "WORKER_ID" in metadata:
        metadata.setdefault("TPU_WORKER_ID", metadata["WORKER_ID"])
    return {**metadata, **{k: v for k, v in facts.env.items() if v}}
