"""accelerate's options: their types, their allowed values, and xmp's counterparts."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace

from xmp._calls import checks
from xmp._plan.clusters import is_each_host_itself
from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError, wrong_type
from xmp._words.types import WorldByHand

__all__ = ["WORDS", "World", "check_interval", "count", "precision", "prefix", "world"]

WORDS = {
    "nprocs": "num_processes",
    'runtime="cpu"': "ACCELERATE_USE_CPU=yes",
    "Pass runtime=": "Set XMP_RUNTIME",
}
"""xmp's names of options in its errors, and the names that they have here."""
_PRECISIONS = ("no", "fp8", "fp16", "bf16")
"""accelerate 1.15, utils/dataclasses.py, ``PrecisionType``."""
_DEFAULT_PORT = 29500
_MOST_PORT = 65535


def count(name: str, value: object) -> int | None:
    """Return ``value``, a number from 1 up or None; raise TypeError or PlanError for others."""
    number = checks.whole_number(name, value)
    if number is not None and number < 1:
        raise PlanError(f"{name}={number}: give a number from 1 up", code="XMP-P01")
    return number


def precision(word: object) -> dict[str, str]:
    """Return the variable from which ``Accelerator`` takes its precision; none for "no"."""
    chosen = _text("mixed_precision", word).lower()
    if chosen not in _PRECISIONS:
        raise PlanError(
            f"Unknown mixed_precision mode: {chosen}. Choose between {', '.join(_PRECISIONS)}",
            code="XMP-P01",
        )
    return {} if chosen == "no" else {"ACCELERATE_MIXED_PRECISION": chosen}


def check_interval(seconds: object) -> None:
    """Raise TypeError or PlanError unless it is a number of seconds above 0, and finite."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise wrong_type("monitor_interval", "a number of seconds", seconds)
    if not (seconds > 0 and math.isfinite(seconds)):
        raise PlanError(f"monitor_interval={seconds}: give seconds, above 0", code="XMP-P01")


def prefix(template: object) -> str | None:
    """Translate torch's template of a line's prefix (torch 2.13, elastic/agent) to xmp's."""
    if template is None:
        return None
    text = _text("log_line_prefix_template", template)
    names = {"rank": "\0rank\1", "local_rank": "\0local_rank\1", "role_name": "default"}
    filled = string.Template(text).safe_substitute(names)
    escaped = filled.replace("{", "{{").replace("}", "}}")
    return escaped.replace("\0", "{").replace("\1", "}")


@dataclass(frozen=True)
class World:
    """The place of this host among all hosts, and the address and port where they meet."""

    port: int = _DEFAULT_PORT
    address: str = "127.0.0.1"
    node: int = 0
    nodes: int = 1

    @property
    def fixed_port(self) -> int:
        """The port; 0 (any free one) for the default on one host, where launches would clash."""
        return 0 if self.nodes == 1 and self.port == _DEFAULT_PORT else self.port

    def by_hand(self, local: int) -> WorldByHand:
        """Return xmp's description of this world, with ``local`` replicas on each host."""
        here = self.nodes == 1 and is_each_host_itself(self.address)
        address = "" if here else self.address
        return WorldByHand(self.node * local, self.nodes * local, address, self.fixed_port)

    def met_by(self, backend: object, endpoint: object, conf: object, run: object) -> World:
        """Return this world with the address and port of torch's rendezvous, if it names them.

        Raise PlanError where several hosts cannot meet so, TypeError for a wrong type.
        """
        found, place = _text("rdzv_backend", backend), _text("rdzv_endpoint", endpoint)
        if found not in ("static", "c10d"):
            raise PlanError(
                f"rdzv_backend={found!r}: xmp has none. Allowed: 'static', 'c10d'", code="XMP-P01"
            )
        if conf is not None and not isinstance(conf, Mapping):
            raise TypeError(f"rdzv_conf must be a dict or None, not {type(conf).__name__}")
        other = [f"rdzv_id={run!r}"] if _text("rdzv_id", run) != "none" else []
        other += [f"rdzv_conf={dict(conf)}"] if conf else []
        other += ["rdzv_backend='c10d'"] if found == "c10d" else []
        if self.nodes > 1 and other:
            raise PlanError(
                f"{other[0]} with num_nodes={self.nodes}: xmp runs no rendezvous. Give node_rank=, "
                "master_addr= and use_port= on each host",
                code="XMP-H05",
            )
        return _meeting(self._at(place) if found == "static" and place else self)

    def _at(self, endpoint: str) -> World:
        address, colon, number = endpoint.rpartition(":")
        if not colon or not address:
            raise PlanError(f"rdzv_endpoint={endpoint!r}: give host:port", code="XMP-P01")
        return replace(self, address=address.strip("[]"), port=_port(number))


def world(use_port: object, master_addr: object, node_rank: object, num_nodes: object) -> World:
    """Return the world of these options; raise PlanError or TypeError for impossible values."""
    nodes = count("num_nodes", num_nodes)
    node = checks.whole_number("node_rank", node_rank)
    if nodes is None or node is None:
        raise TypeError("num_nodes and node_rank must be whole numbers, not None")
    if not 0 <= node < nodes:
        raise PlanError(
            f"The node_rank must be less than the number of nodes: node_rank={node}, "
            f"num_nodes={nodes}. Allowed: 0 to {nodes - 1}",
            code="XMP-H05",
        )
    return World(_port(use_port), _text("master_addr", master_addr), node, nodes)


def _meeting(found: World) -> World:
    """Return ``found``; raise PlanError where its hosts cannot meet there."""
    if found.nodes > 1 and is_each_host_itself(found.address):
        raise PlanError(
            f"num_nodes={found.nodes}, but master_addr={found.address!r} is each host itself. Give "
            "the address of the host with node_rank=0 on every host",
            code="XMP-H04",
        )
    if found.nodes > 1 and not found.port:
        raise PlanError(
            f"use_port=0 with num_nodes={found.nodes}: give all hosts the same port", code="XMP-H05"
        )
    return found


def _port(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise wrong_type("use_port", "a port as a string or a number", value)
    text = str(value)
    if not (is_number(text) and len(text) <= len(str(_MOST_PORT)) and int(text) <= _MOST_PORT):
        raise PlanError(
            f"use_port={value!r}: give a number from 1 to {_MOST_PORT}, or 0", code="XMP-P01"
        )
    return int(text)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, "a string", value)
    # A member of accelerate's PrecisionType is a string, whose str() is not its value.
    return str.__str__(value)
