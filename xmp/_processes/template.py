"""The template: a single-threaded process that has imported much and touched nothing.

Its loop (``server``) also serves as keeper (nothing preloaded) for the start methods ``spawn`` and
``fork``, and in the holder of a script that was imported once (``holder``).

Requests (from the launcher), with their descriptors:
    ("fork", token) + [control socket, lifeline]
    ("script", token, source, state, rules) + [its socket, its lifeline, standard streams]
    ("import", names), and ("candidates", names, rules): only what a trial finds harmless
Reports: ("ready", facts), ("took", modules, environment), ("forked", pid, token),
    ("ended", pid, status); of a script holder also ("unsafe", culprits), ("failed", text, error)
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from typing import Any

from xmp._payload import pickler  # noqa: F401  (replicas shall find it imported)

from . import kernel, marked, randomness, supervisor
from .holder import hold_script
from .rehearsal import rehearse
from .server import SUPERVISOR, Server, import_all, origin, settle
from .wire import Closed, Wire

__all__ = ["main", "serve"]


def main(connection: int, lifeline: int) -> None:
    """The first lines of a freshly started template; never returns."""
    wire, launcher = Wire(connection), os.getppid()
    try:
        # exec keeps blocked and ignored signals; with SIGCHLD ignored, exit codes would be lost.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        marked.leave(os.environ.pop(marked.VARIABLE, ""))
        kernel.arm(lifeline)
        kernel.subreaper()
        (path, modules, idle, title), _ = wire.recv()
        kernel.set_name(title)
        sys.path[:] = path
        randomness.watch_torch()
        failed, slowest = import_all(modules)
        gc.freeze()  # the garbage of imports may stay, shared: to find torch's takes 60 ms
        settle()
        loaded = {name: origin(sys.modules[name]) for name in modules if name in sys.modules}
        facts = {"pid": os.getpid(), "modules": loaded, "after": dict(os.environ)}
        wire.post(("ready", {**facts, "slowest": slowest, "failed": failed}))
        kernel.disarm(lifeline)
        Server(wire, lifeline, launcher, idle, become, rehearse=rehearse).run()
    except (Closed, KeyboardInterrupt):
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def serve(wire: Wire, lifeline: int) -> None:
    """Be the keeper of one launch, in a process forked from the launcher; never returns."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    kernel.subreaper()
    kernel.set_name("xmp-keeper")
    try:
        Server(wire, lifeline, os.getppid(), None, become, single=True).run()
    except Closed:
        pass
    finally:
        os._exit(0)


# --- what a child becomes ----------------------------------------------------------------------


def become(request: tuple[Any, ...], descriptors: list[int], idle: float | None) -> None:
    """Turn a fresh child into what was asked for; never returns."""
    try:
        os.setsid()
        if request[0] == "fork":
            kernel.set_name(SUPERVISOR)
            supervisor.main(*descriptors[:2])
        else:
            control, lifeline, *streams = descriptors
            hold_script(request, Wire(control), lifeline, streams, idle, become)
    except Closed:
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    finally:
        os._exit(0)
