"""The process at a host's end of the stream (xmp-host): it starts the agent, and ends with it.

When the stream ends, or nothing has come for 12 s, the agent is ended; all that the agent has
started ends by its lifelines. Where the agent alone has ended, the driver hears how, and another
one answers what the driver still asks for: log files of the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from xmp._hosts.engines.environment import for_agents
from xmp._hosts.engines.local_agent import LocalAgent
from xmp._processes.messages.connection import Closed
from xmp._processes.system import linux

from .bridge import Bridge
from .frames import ENDED, SECRET, FrameReader, FrameWriter, Seal, StreamBroken, seals
from .tcp import Callers, Met, Secret, dialled, in_words, listening, port_range

__all__ = ["main", "serve"]

_PATIENCE = 5.0
_LAST_WAIT = 1.0
_DIAL = 2.0
"""Seconds for a connection to the driver."""
_ROOM = 128 * 1024


def serve(out: int, mark: str, sealed: bool) -> None:
    """Carry between the agent of this host, which is started, and the stream: 0 and ``out``."""
    _begin()
    if not sealed:  # sshd has one thread, slurmstepd has many
        linux.killed_with_parent()
    source = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    for descriptor in (source, out):
        os.set_inheritable(descriptor, False)
    secret = os.environ.pop(SECRET, "")
    if sealed and not secret:
        os._exit(1)  # frames without codes would be taken from anybody
    theirs, ours = seals(secret, mark)
    _Host(for_agents()).carry(source, theirs, out, ours)


def main(orders: int, lifeline: int, above: int = -1) -> NoReturn:
    """Carry over TCP, as the first packet of ``orders`` says; end with the lifeline, at once.

    ``above``: a descriptor that is readable once what this host depends on has ended.
    """
    for descriptor in (orders, lifeline, above):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    linux.arm(lifeline)
    _begin()
    host = _Host(dict(os.environ))
    with socket.socket(fileno=orders) as starter:
        given = json.loads(starter.recv(_ROOM))
        host.tell(given["first"])
        if above >= 0:
            host.end_with(above, given["above"])
        met = _met(given, starter, lifeline)
    number = met.socket.fileno()
    host.carry(number, met.theirs, number, met.ours)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # srun passes a Ctrl-C on: the driver ends us
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    linux.set_name("xmp-host")


def _met(given: Mapping[str, Any], starter: socket.socket, lifeline: int) -> Met:
    """Connect to the driver, or wait for its connection; tell ``starter`` which of both."""
    secret, refused = Secret(*given["secret"]), "it does not listen"
    if given["port"]:
        try:
            met = dialled(given["address"], given["port"], secret, _DIAL)
        except OSError as refusal:
            refused = in_words(refusal)
        else:
            starter.send(json.dumps({"met": True}).encode())
            return met
    answer: dict[str, Any] = {"met": False, "refused": refused, "port": 0, "why": ""}
    try:
        listener = listening(given["own"], port_range(given["ports"]))
    except OSError as error:
        starter.send(json.dumps({**answer, "why": in_words(error)}).encode())
        os._exit(1)
    starter.send(json.dumps({**answer, "port": listener.getsockname()[1]}).encode())
    # Where a lifeline cannot kill (linux.arm), its end ends the wait.
    return Callers(listener, secret).met(lifeline) or os._exit(1)


class _Answering(LocalAgent):
    """An agent that answers questions, and launches nothing."""

    function = "answer"


class _Host:
    """The agent of this host, and its end of the stream."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Start the agent, with these variables."""
        self._env = env
        self._why = ""
        """Why this process has ended the agent."""
        self._carries = False
        """Whether it has met the driver."""
        self._agent = LocalAgent(0, "", env)
        self._bridge = Bridge(
            socket.socket(fileno=self._agent.detach()), lambda: bytes([self._agent.is_stopped()])
        )

    def tell(self, packets: Sequence[str]) -> None:
        """Send the agent packets that came with the order, each in hexadecimal."""
        for each in packets:
            self._bridge.deliver(bytes.fromhex(each))

    def end_with(self, above: int, why: str) -> None:
        """End the agent once this descriptor is readable."""

        def watch() -> None:
            linux.ready(above, select.POLLIN, None)
            self._why = why
            self._agent.kill()
            if not self._carries:
                os._exit(1)

        threading.Thread(target=watch, daemon=True).start()

    def carry(self, source: int, theirs: Seal | None, sink: int, ours: Seal | None) -> NoReturn:
        """Carry until either side has ended, and end this process."""
        bridge, self._carries = self._bridge, True
        reader = FrameReader(source, bridge.room, theirs)
        bridge.use(reader, FrameWriter(sink, ours), source, sink)
        try:
            self._turns()
            if not self._why:
                self._start_again()
                self._turns()
            bridge.finish(_PATIENCE)
        except (Closed, TimeoutError):
            pass  # without its driver, nothing goes on here
        except StreamBroken as error:
            self._last_words(str(error))
        except Exception as error:
            traceback.print_exc()
            self._last_words(f"{type(error).__name__}: {error}")
        finally:
            bridge.close()
            self._agent.kill()  # what it has started ends by its lifelines
            self._agent.how_it_ended()
            os._exit(0)

    def _last_words(self, why: str) -> None:
        """Tell the driver why this process ends the agent."""
        with contextlib.suppress(Closed, OSError):
            self._bridge.writer.put(ENDED, f"was ended by xmp-host: {why}".encode())
            self._bridge.finish(_LAST_WAIT)

    def _turns(self) -> None:
        """Carry until the agent has ended, and tell the driver how."""
        while not self._bridge.local_over:
            self._bridge.turn()
        how = self._agent.how_it_ended()
        self._bridge.writer.put(ENDED, (self._why or how).encode())

    def _start_again(self) -> None:
        """Start another agent, for questions alone: what was sent to the first may still come."""
        self._agent.end()
        self._agent = _Answering(0, "", self._env)
        self._bridge.local.close()
        self._bridge.join(socket.socket(fileno=self._agent.detach()))
