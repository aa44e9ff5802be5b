"""The process at a host's end of the stream (xmp-host): it starts the agent, and ends with it.

When the stream ends, or nothing has come for 12 s, the agent is ended; all that the agent has
started ends by its lifelines.
"""

from __future__ import annotations

import os
import signal
import socket

from xmp._hosts.engines.environment import for_agents
from xmp._hosts.engines.local_agent import LocalAgent
from xmp._processes.messages.connection import Closed
from xmp._processes.system import linux

from .bridge import Bridge
from .frames import ENDED, SECRET, FrameReader, FrameWriter, StreamBroken, seals

__all__ = ["serve"]

_PATIENCE = 5.0


def serve(out: int, mark: str, sealed: bool) -> None:
    """Carry between the agent of this host, which is started, and the stream: 0 and ``out``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # srun passes a Ctrl-C on: the driver ends us
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    linux.set_name("xmp-host")
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
    agent = LocalAgent(0, "", for_agents())
    bridge = Bridge(socket.socket(fileno=agent.detach()), lambda: bytes([agent.is_stopped()]))
    theirs, ours = seals(secret, mark)
    reader = FrameReader(source, bridge.room, theirs)
    bridge.use(reader, FrameWriter(out, ours), source, out)
    try:
        while not bridge.local_over:
            bridge.turn()
        bridge.writer.put(ENDED, agent.how_it_ended().encode())
        bridge.finish(_PATIENCE)
    except (Closed, StreamBroken, TimeoutError):
        pass  # without its driver, nothing goes on here
    finally:
        bridge.close()
        agent.kill()  # what it has started ends by its lifelines
        agent.how_it_ended()
        os._exit(0)
