"""The template: a single-threaded process that has many modules imported and has touched nothing.

- Started by: the launcher, as a fresh interpreter, at its first launch or ``xmp.preload()``. It
  serves all later launches that fit it (``launcher/template_key``).
- Loaded: the engine, the frameworks and packages that the launcher has loaded, and later modules
  that trials find harmless (``preloading``). Never the user's script: the script holder has that.
- May touch: no device, no network, no terminal; it has one thread and holds no lock. Each launch
  begins with a fork of it, which copies all of its state.
- Ends: when the launcher ends or closes the connection and its supervisors have ended, or after
  10 minutes without a launch (in a notebook: never). It then kills whatever is left below it.

The same loop (``server``) serves as keeper, which has loaded nothing for the user and ends with its
launch: for ``start_method="spawn"`` a fresh interpreter (``main``), for ``"fork"`` a fork of the
launcher (``serve``), whose files and memory the replicas inherit. ``messages/fork_server`` lists
the requests and the reports.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from functools import partial
from typing import NoReturn

from xmp._payload import pickler  # noqa: F401  (so that replicas find it imported)
from xmp._processes.messages.connection import Closed, Connection
from xmp._processes.messages.fork_server import ForkRequest, ForkSupervisor, Ready, StartTemplate
from xmp._processes.replica import seeding
from xmp._processes.replica.role import LoadedCall
from xmp._processes.supervisor import supervisor_main as supervisor
from xmp._processes.system import fork_safety, launcher_mark, linux
from xmp._processes.system.descriptors import keep_from_exec

from .script_holder import hold_script
from .server import SUPERVISOR, ForkServer
from .template_imports import files_of, import_all, settle, variables_read

__all__ = ["main", "serve"]


def main(descriptor: int, lifeline: int) -> NoReturn:
    """Be a template or a keeper, in a fresh interpreter from its first line on; never return."""
    keep_from_exec((descriptor, lifeline))
    connection, launcher = Connection(descriptor), os.getppid()
    try:
        # exec keeps blocked and ignored signals; with SIGCHLD ignored, exit codes would be lost.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        launcher_mark.leave(os.environ.pop(launcher_mark.VARIABLE, ""))
        linux.arm(lifeline)
        linux.subreaper()
        (path, modules, idle, title), _ = connection.expect(StartTemplate)
        linux.set_name(title)
        sys.path[:] = path
        seeding.watch_torch()
        failed, slowest = import_all(modules)
        gc.freeze()  # keep the imports' garbage, shared: collecting that of torch takes 60 ms
        settle()
        fork_safety.note_imports()
        loaded = files_of(modules)
        read = variables_read.names()
        # Sent now: a launch may wait for it before it requests anything.
        connection.send(Ready(os.getpid(), loaded, dict(os.environ), slowest, failed, read, {}))
        ForkServer(connection, lifeline, launcher, idle, partial(become, idle=idle)).run()
    except (Closed, KeyboardInterrupt):
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def serve(connection: Connection, lifeline: int, call: LoadedCall) -> NoReturn:
    """Be the keeper of one launch, in a process forked from the launcher; never return."""

    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    linux.subreaper()
    linux.set_name("xmp-keeper")
    try:
        fork = partial(become, inherited=call)
        ForkServer(connection, lifeline, os.getppid(), None, fork, one_launch=True).run()
    except Closed:
        pass
    finally:
        os._exit(0)


def become(
    request: ForkRequest,
    descriptors: list[int],
    idle: float | None = None,
    inherited: LoadedCall | None = None,
) -> NoReturn:
    """Turn a fresh child into the requested process; never return."""
    try:
        os.setsid()
        if isinstance(request, ForkSupervisor):
            linux.set_name(SUPERVISOR)
            supervisor.main(descriptors[0], descriptors[1], inherited)
        else:
            control, lifeline, *streams = descriptors
            hold_script(request, Connection(control), lifeline, streams, idle, become)
    except Closed:
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    finally:
        os._exit(0)
