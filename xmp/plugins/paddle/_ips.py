"""``ips`` and its deprecated companions: the hosts of the job, and which of them this is."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import replace

from xmp._plan.clusters._host_texts import is_loopback
from xmp._plan.clusters.launchers import TRAINERS
from xmp._words.errors import PlanError
from xmp._words.types import HostsByHand

from ._options import Options, port_of, port_of_flags

__all__ = ["by_hand", "with_cloud"]

DOCUMENTED_PORT = 6070
"""The first port where several hosts meet (Paddle 3.3.1, distributed/fleet/launch.py)."""
CLOUD = ("PADDLE_TRAINERS", "POD_IP", TRAINERS.rank, "PADDLE_PORT")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_SEVERAL_ON_ONE_MACHINE = re.compile(r"127\.0\.0\.(?!1$)\d+")


def by_hand(options: Options) -> tuple[HostsByHand | None, int]:
    """Return the hosts that the options name, or None, and the port of a single host, or 0.

    Raise PlanError where ``ips`` is no list of hosts, or this host is not exactly one of them.
    """
    port = options.started_port or port_of_flags() or 0
    text = options.node_ip if options.ips is None else options.ips
    if text is None:
        return None, port
    hosts = _hosts(text)
    if len(hosts) == 1:
        if options.ips is not None and options.node_ip is not None:
            _index_of(options.node_ip, hosts)
        elif not is_loopback(hosts[0]):
            _own_index(hosts)
        return HostsByHand(0, hosts, port), port
    _refuse_loopback(hosts)
    index = _own_index(hosts) if options.node_ip is None else _index_of(options.node_ip, hosts)
    return HostsByHand(index, hosts, port or DOCUMENTED_PORT), 0


def _hosts(text: str) -> tuple[str, ...]:
    """Return the entries of ``ips``: addresses of either version, and names; or raise PlanError."""
    hosts = tuple(map(_host, text.split(",")))
    wrong = [part for part, host in zip(text.split(","), hosts) if host is None]
    if wrong:
        raise PlanError(
            f"ips={text!r}: {wrong[0].strip()!r} is no host. Give addresses or names with commas "
            'and without ports, such as "10.0.0.4,10.0.0.5"; FLAGS_START_PORT sets the port',
            code="XMP-H05",
        )
    found = tuple(host for host in hosts if host is not None)
    if len({*found}) < len(found):
        raise PlanError(
            f"ips={text!r} names a host twice. Name each host once, in the same order",
            code="XMP-H05",
        )
    return found


def _host(part: str) -> str | None:
    text = part.strip()
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        numeric = re.fullmatch(r"[0-9.]+", text)  # "10.0.0" and "300.1.2.3" are no names
        return text if _NAME.fullmatch(text) and not numeric else None


def _refuse_loopback(hosts: tuple[str, ...]) -> None:
    for host in hosts:
        if is_loopback(host) and not _SEVERAL_ON_ONE_MACHINE.fullmatch(host):
            raise PlanError(
                f"ips={_list(hosts)!r} are {len(hosts)} hosts, but {host} is each host itself. "
                "Give an address that the others reach",
                code="XMP-H04",
            )


def _own_index(hosts: tuple[str, ...]) -> int:
    """Find this host in the list by its own addresses; raise PlanError unless it is there once."""
    from xmp._os.names import own_addresses

    here = [index for index, host in enumerate(hosts) if _is_here(host)]
    if len(here) == 1:
        return here[0]
    own = ", ".join(own_addresses())
    if not here:
        raise PlanError(
            f"no host of ips={_list(hosts)!r} is this one. Given: {', '.join(hosts)}. This host "
            f"has: {own}. Start the program on the hosts of the list, with the same list on each",
            code="XMP-H05",
        )
    raise PlanError(
        f"several hosts of ips={_list(hosts)!r} are this one: "
        f"{', '.join(hosts[index] for index in here)}. This host has: {own}. Name each host once; "
        "node_ip= says which entry this one is",
        code="XMP-H05",
    )


def _is_here(host: str) -> bool:
    from xmp._os.names import addresses_of, is_here

    if host.lower() == socket.gethostname().lower():
        return True
    try:
        return any(map(is_here, addresses_of(host)))
    except OSError:
        raise PlanError(
            f"ips names {host!r}, which the name service of this host does not know. Give its "
            "address",
            code="XMP-H04",
        ) from None


def _index_of(node_ip: str, hosts: tuple[str, ...]) -> int:
    host = _host(node_ip)
    if host not in hosts:
        raise PlanError(
            f"node_ip={node_ip!r} is not among ips={_list(hosts)!r}. Give one of its entries, or "
            "leave node_ip out: xmp finds this host by its addresses",
            code="XMP-H05",
        )
    return hosts.index(host)


def _list(hosts: tuple[str, ...]) -> str:
    return ",".join(hosts)


# --- PaddleCloud ----------------------------------------------------------------------------------


def with_cloud(options: Options, environ: Mapping[str, str] | None = None) -> Options:
    """Return the options with what PaddleCloud's variables say, if ``use_paddlecloud`` is set.

    PADDLE_TRAINERS has the addresses of all hosts with commas, POD_IP that of this one,
    PADDLE_TRAINER_ID its place in the list, PADDLE_PORT the first port (Paddle 3.3.1,
    distributed/cloud_utils.py). Raise PlanError for variables that are missing, or that contradict
    each other or the options.
    """
    if not options.use_paddlecloud:
        return options
    env = os.environ if environ is None else environ
    missing = [name for name in CLOUD if not env.get(name, "").strip()]
    if missing:
        raise PlanError(
            f"use_paddlecloud=True needs {', '.join(CLOUD)}, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set. Set them, or give ips=",
            code="XMP-P08",
        )
    trainers, pod, index, port = (env[name].strip() for name in CLOUD)
    hosts = _hosts(trainers)
    given = f"PADDLE_TRAINERS={trainers}, POD_IP={pod}, PADDLE_TRAINER_ID={index}"
    if index not in map(str, range(len(hosts))) or hosts[int(index)] != _host(pod):
        raise PlanError(
            f"use_paddlecloud=True: {given} contradict each other. PADDLE_TRAINER_ID is the place "
            "of POD_IP in PADDLE_TRAINERS, from 0",
            code="XMP-P08",
        )
    made = replace(options, ips=trainers, node_ip=pod, started_port=port_of("PADDLE_PORT", port))
    for name in ("ips", "node_ip", "started_port"):
        old, new = getattr(options, name), getattr(made, name)
        if old is not None and str(old).replace(" ", "") != str(new).replace(" ", ""):
            raise PlanError(
                f"{name}={old!r}, but use_paddlecloud=True reads {new!r} from {', '.join(CLOUD)}. "
                f"Leave {name} or use_paddlecloud out",
                code="XMP-P08",
            )
    return made
