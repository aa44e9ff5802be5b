"""The hosts that ``xmp run --nnodes 2 --node-rank 1 --master-addr HOST`` names.

Or ``--nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT``, where each finds out which it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from xmp._plan.clusters._base import MOST_PORT, PORTS, index_of, nodes, number
from xmp._plan.clusters._host_texts import split_port
from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError
from xmp._words.types import HostsByHand

__all__ = ["by_hand", "count"]


def count(options: argparse.Namespace) -> int | None:
    """How many hosts ``--nnodes`` names; None without it. Raises PlanError."""
    text = "1" if options.standalone else options.nnodes
    if text is None:
        return None
    if len(set(text.split(":"))) == 1:
        text = text.partition(":")[0]  # "1:1" is torchrun's own default
    if not is_number(text) or int(text) == 0:
        raise PlanError(
            f"--nnodes {text}: xmp joins a fixed number of hosts. Give one number, from 1 up",
            code="XMP-H05",
        )
    return int(text)


def by_hand(options: argparse.Namespace, environ: Mapping[str, str]) -> HostsByHand | None:
    """Return the hosts of the job, and which of them this is; None if the options do not say.

    An option that is left out is the variable of its name: ``NNODES``, ``NODE_RANK``,
    ``MASTER_ADDR``, ``MASTER_PORT``. Raises PlanError for what is missing or cannot be.
    """
    _check_port(options.master_port)
    hosts = count(options)
    if hosts is None and options.node_rank is None:
        return None
    if hosts is None:
        hosts = nodes(environ)
    if hosts is None:
        raise PlanError(
            f"--node-rank {options.node_rank}: give --nnodes, the number of hosts, too",
            code="XMP-H05",
        )
    index = _index(options.node_rank, hosts)
    if index is None and hosts > 1:
        index = index_of(environ, "NODE_RANK", "--nnodes", hosts)
    if hosts > 1 and options.rdzv_endpoint:
        return _at_endpoint(hosts, index, options)
    if index is None and hosts > 1:
        raise PlanError(
            f"--nnodes {hosts}: give --node-rank too, from 0 to {hosts - 1} and another on each "
            "host, and --master-addr, the address of the host with --node-rank 0; or, the same on "
            "all hosts, --rdzv-endpoint HOST:PORT, an address of one of them",
            code="XMP-H05",
        )
    index = _below(index or 0, hosts)
    return None if hosts == 1 else _several(hosts, index, options, environ)


def _at_endpoint(hosts: int, index: int | None, options: argparse.Namespace) -> HostsByHand:
    """Return the hosts that meet at --rdzv-endpoint. Raise PlanError."""
    text, backend = options.rdzv_endpoint, options.rdzv_backend
    if backend not in (None, "c10d", "static") or (backend == "static" and index is None):
        raise PlanError(
            f"--rdzv-backend {backend} and --nnodes {hosts}: give --node-rank and --master-addr, "
            "or --rdzv-backend c10d, with which the hosts find out who is which",
            code="XMP-H05",
        )
    address, port = split_port(text)
    if not address or port > MOST_PORT or text.rstrip().endswith((":", ":0")):
        raise PlanError(
            f"--rdzv-endpoint {text}: give HOST:PORT, an address of one of the hosts and a port "
            f"from 1 to {MOST_PORT}, the same on all",
            code="XMP-H05",
        )
    addresses = (address, *[""] * (hosts - 1))
    said = f"--nnodes {hosts} --rdzv-endpoint {text}"
    job = options.rdzv_id or ""
    return HostsByHand(-1 if index is None else _below(index, hosts), addresses, port, said, job)


def _below(index: int, hosts: int) -> int:
    if index >= hosts:
        raise PlanError(
            f"--node-rank {index} does not fit --nnodes {hosts}. Allowed: 0 to {hosts - 1}",
            code="XMP-H05",
        )
    return index


def _several(
    hosts: int, index: int, options: argparse.Namespace, environ: Mapping[str, str]
) -> HostsByHand:
    address = (options.master_addr or environ.get("MASTER_ADDR", "")).strip()
    if not address:
        raise PlanError(
            f"--nnodes {hosts}: give --master-addr too, the address of the host with --node-rank "
            "0, the same on every host",
            code="XMP-H05",
        )
    port = options.master_port or number(environ, "MASTER_PORT", most=MOST_PORT, allowed=PORTS)
    addresses = tuple(address if host == 0 else "" for host in range(hosts))
    return HostsByHand(index, addresses, port or 0, f"--nnodes {hosts} --node-rank {index}")


def _index(text: str | None, hosts: int) -> int | None:
    if text is None:
        return None
    if not is_number(text):
        raise PlanError(
            f"--node-rank {text}: give the index of this host, 0 to {hosts - 1}", code="XMP-H05"
        )
    return int(text)


def _check_port(port: int | None) -> None:
    if port is not None and not 0 <= port <= MOST_PORT:
        raise PlanError(
            f"--master-port {port}: give a number from 1 to {MOST_PORT}; 0 is for the default",
            code="XMP-H05",
        )
