"""This process as the variables of Paddle's launchers describe it: its rank, device and peers.

``paddle.distributed.launch`` sets all of them (launch/controllers/collective.py),
``paddle.distributed.spawn`` those without ``_LOCAL_`` (spawn.py); both of Paddle 3.3.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from xmp._plan.clusters.launchers import ENDPOINTS, PADDLE, TORCHRUN
from xmp._plan.numbers import MOST
from xmp._plan.numbers import is_number as is_small
from xmp._words.errors import PlanError

from .runtime import BACKEND, COUNT, ENDPOINT, GPU, RANK

__all__ = ["BACKEND", "GPU", "TIMEOUT", "Trainer", "endpoints", "integer", "meeting_place", "read"]

Env = Mapping[str, str]
LOCAL_RANK = PADDLE.local_rank
LOCAL_COUNT = PADDLE.local_world
MASTER = "PADDLE_MASTER"  # "10.0.0.1:6070"
TIMEOUT = "PADDLE_PG_TIMEOUT"
XPU = "FLAGS_selected_xpus"
BACKUP = "PADDLE_BACKUP_ENV_PATH"
"""A JSON file with variables that were too long for the environment (backup_env.py)."""


@dataclass(frozen=True)
class Trainer:
    """A process that one of Paddle's launchers has started."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device_id: int | None
    """The GPU or XPU that it was given; None for none."""


def read(environ: Env) -> Trainer | None:
    """Return the trainer that this process is; None where no launcher of Paddle's started it.

    Raises:
        PlanError: a variable is missing or no number, or two of them contradict each other.
    """
    if RANK not in environ and COUNT not in environ:
        return None
    world = integer(environ, COUNT, least=1)
    rank = integer(environ, RANK)
    if world is None or (rank is None and world > 1):
        missing, there = (COUNT, RANK) if world is None else (RANK, COUNT)
        raise PlanError(
            f"{there}={environ[there]} is set and {missing} is not. Set both, as Paddle's "
            "launcher does, or neither",
            code="XMP-P08",
        )
    rank = rank or 0
    if rank >= world:
        raise PlanError(
            f"{RANK}={rank} does not fit {COUNT}={world}: ranks are 0 to {world - 1}. Set them "
            "right, or unset both",
            code="XMP-P08",
        )
    given = endpoints(environ)
    if any(given) and len(given) != world:
        raise PlanError(
            f"{ENDPOINTS} has {len(given)} endpoints ({', '.join(given)}), and {COUNT} is {world}. "
            "Give each trainer one endpoint",
            code="XMP-P08",
        )
    local, local_world = _on_this_host(environ, rank, world, given)
    return Trainer(rank, world, local, local_world, _selected(environ))


def endpoints(environ: Env) -> list[str]:
    """Return the endpoints of all trainers in rank order; ``[""]`` where none are known.

    Raises:
        PlanError: PADDLE_BACKUP_ENV_PATH names a file that cannot be read.
    """
    text = environ.get(ENDPOINTS)
    if text is None and environ.get(BACKUP):
        text = _kept(environ[BACKUP], ENDPOINTS)
    return (text or "").split(",")


def current_endpoint(environ: Env) -> str:
    """Return the endpoint of this trainer; empty where none is known."""
    return environ.get(ENDPOINT, "")


def meeting_place(environ: Env, world: int) -> tuple[str, int]:
    """Return the address and the port where rank 0 hosts the store.

    The order is Paddle's: MASTER_ADDR with MASTER_PORT, then PADDLE_MASTER, then the first of
    PADDLE_TRAINER_ENDPOINTS. IPv6 addresses may stand in brackets.

    Raises:
        PlanError: none of them is set, or the one that counts is not an endpoint.
    """
    names = (TORCHRUN.address, TORCHRUN.port)
    address, port = map(environ.get, names)
    if address and port:
        return _parsed("MASTER_ADDR:MASTER_PORT", f"{address}:{port}")
    if environ.get(MASTER):
        return _parsed(MASTER, environ[MASTER])
    first = endpoints(environ)[0]
    if first:
        return _parsed(f"the first of {ENDPOINTS}", first)
    half = next((name for name in names if environ.get(name)), "")
    also = f" (of the last two, only {half} is set)" if half else ""
    raise PlanError(
        f"{world} trainers need an address to meet at, and {ENDPOINTS}, {MASTER}, MASTER_ADDR with "
        f"MASTER_PORT are not set{also}. Set one of them, to the same value for all trainers",
        code="XMP-P08",
    )


def integer(environ: Env, name: str, least: int = 0, most: int = MOST) -> int | None:
    """Return the number in a variable; None where it is not set.

    Raises:
        PlanError: it is no whole number from ``least`` to ``most``.
    """
    text = environ.get(name)
    if text is None:
        return None
    stripped = text.strip()
    readable = stripped.isascii() and stripped.isdigit() and len(stripped) < 20
    if not (readable and least <= int(stripped) <= most):
        raise PlanError(
            f"{name} is {text!r}; it must be a whole number from {least} to {most}. Set it right, "
            "or unset it",
            code="XMP-P08",
        )
    return int(stripped)


def _parsed(name: str, endpoint: str) -> tuple[str, int]:
    address, _, port = endpoint.strip().rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not address or "/" in address or not (is_small(port) and 0 < int(port) < 2**16):
        raise PlanError(
            f"{name} is {endpoint!r}; it must be an address and a port from 1 to 65535, such as "
            "10.0.0.1:6070 or [fd00::1]:6070",
            code="XMP-P08",
        )
    return address, int(port)


def _on_this_host(environ: Env, rank: int, world: int, given: list[str]) -> tuple[int, int]:
    """Return the local rank and the number of trainers on this host; raise PlanError for misfits.

    Where variables do not give them, as with spawn.py, they are counted in the endpoints.
    """
    local = integer(environ, LOCAL_RANK)
    local_world = integer(environ, LOCAL_COUNT, least=1)
    hosts = [each.rpartition(":")[0] for each in given] if any(given) else [""] * world
    if local is None:
        local = hosts[:rank].count(hosts[rank])
    if local_world is None:
        local_world = hosts.count(hosts[rank])
    if local >= local_world:
        raise PlanError(
            f"{LOCAL_RANK}={local} does not fit {LOCAL_COUNT}={local_world}: local ranks are 0 to "
            f"{local_world - 1}. Set them right, or unset both",
            code="XMP-P08",
        )
    return local, local_world


def _selected(environ: Env) -> int | None:
    """Return the first device of FLAGS_selected_gpus ("0,1"), or else of FLAGS_selected_xpus."""
    for name in (GPU, XPU):
        if environ.get(name):
            return integer({name: environ[name].split(",")[0]}, name)
    return None


def _kept(path: str, name: str) -> str | None:
    try:
        with open(path) as file:
            found = json.load(file)
        value = found.get(name)
    except (OSError, ValueError, AttributeError) as error:
        raise PlanError(
            f"{BACKUP} is {path!r}, from where {name} cannot be read ({error}). Paddle's launcher "
            f"writes that file; set {name}, or unset {BACKUP}",
            code="XMP-P08",
        ) from error
    return value if isinstance(value, str) else None
