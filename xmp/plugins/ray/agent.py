"""An agent that Ray starts: its actor, and the stream to it over TCP."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Sequence
from typing import Any

from xmp._hosts.engines.remote_agent import RemoteAgent
from xmp._hosts.stream.tcp import Secret, in_words, listening, port_range
from xmp._hosts.stream.ways import order_of_connection
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import prepared
from xmp._words.errors import PlanError, brief

from .answers import Connected

__all__ = ["RayAgent", "ports_allowed"]

_PORTS = "XMP_AGENT_PORTS"


def ports_allowed() -> str:
    """Return the ports at which driver and hosts may listen, as "LOW-HIGH"; "" for any."""
    given = os.environ.get(_PORTS, "").strip()
    try:
        port_range(given)
    except ValueError:
        raise PlanError(
            f"{_PORTS}={brief(given)}: give two ports from 1 to 65535, as in 20000-20063",
            code="XMP-P01",
        ) from None
    return given


def _is_encrypted() -> bool:
    """Return whether Ray encrypts its messages (2.60, _private/grpc_utils.py).

    The secret goes to the host in one of them. Where others on the way can read it, codes keep
    them out of nothing, and those of files are left out for speed.
    """
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


class RayAgent(RemoteAgent):
    """The agent of a node, and the actor there that has started it."""

    def __init__(self, index: int, home: str, ports: str) -> None:
        """Listen at ``home``, this host's address in the cluster, at a port of ``ports``."""
        self._ray = Connected()
        self.actor: Any = None
        self._home, self._ports = home, ports
        self._secret = Secret(secrets.token_hex(32), _is_encrypted())
        self._port, self._why = 0, ""
        """The port at which the driver listens; or why it does not."""
        with contextlib.ExitStack() as stack:
            files = []
            try:
                listener = stack.enter_context(listening(home, port_range(ports)))
            except OSError as error:
                self._why = in_words(error)
            else:
                self._port, files = listener.getsockname()[1], [listener.fileno()]
            order = order_of_connection(self._secret)
            super().__init__(index, "", order, dict(os.environ), files)
        self._answer: dict[str, Any] = {}

    def order(self, first: Sequence[Message]) -> str:
        """Return what ``xmp-host`` is told; ``first``: for the agent, as soon as it starts."""
        packets = [prepared(each).hex() for each in first]
        given = {"address": self._home, "port": self._port, "ports": self._ports}
        above = "was ended, as the raylet of its host has ended"
        return json.dumps({**given, "secret": self._secret, "above": above, "first": packets})

    def started(self, name: str, answer: dict[str, Any]) -> None:
        """Take the answer of the actor; connect where the host could not."""
        self.name, self.address, self._answer = name, answer["address"], answer
        if not answer["met"]:
            self.dial(self.address, answer["port"], answer["why"])

    @property
    def is_reached(self) -> bool:
        """Whether one of both has connected to the other."""
        return bool(self.facts)

    def unreached(self) -> str:
        """Say how both connections have failed."""
        port, how = self._answer["port"], super().how_it_ended()
        there = f"{self.address} port {port}" if port else self.address
        here = (
            f"at {self._home} port {self._port} ({self._answer['refused']})"
            if self._port
            else f"which cannot listen at {self._home} ({self._why})"
        )
        return (
            f"{self.name} could not connect to the driver {here}, nor the driver to it at {there} "
            f"({how}). Open a way for one of both: {_PORTS}={self._ports or 'LOW-HIGH'} of the "
            "driver says at which ports they listen. The addresses are those that Ray has for the "
            "nodes (ray start --node-ip-address)"
        )

    def kill(self) -> None:
        super().kill()
        if self._ray.lives:
            import ray

            ray.kill(self.actor)

    def how_it_ended(self) -> str:
        if not self._ray.lives:
            return "cannot be reached: the program has called ray.shutdown()"
        return super().how_it_ended()
