"""The script holder: a fork of the template that has imported the launcher's script once.

- Started by: the template, at the first launch of a script (``StartScriptHolder``). Another script,
  or the same one changed, gets another holder.
- Loaded: the template's modules, and the script as ``__mp_main__``, imported with the launcher's
  path, working folder and environment.
- May touch: whatever the script's import touches. If that leaves a thread, an open device or a
  connection, a fork is not safe: the holder sends ``ForkUnsafe`` and ends, and the launch uses
  fresh interpreters. Otherwise it is a fork server like the template.
- Ends: with the launcher, when the launcher closes its connection, or after 10 idle minutes; then
  it runs the exit handlers that the script registered.
"""

from __future__ import annotations

import os

from xmp._payload.script import import_main
from xmp._processes.messages import launcher_state
from xmp._processes.messages.connection import Connection
from xmp._processes.messages.fork_server import ForkUnsafe, ImportFailed, Ready, StartScriptHolder
from xmp._processes.replica import breakpoints
from xmp._processes.replica.exit import finish_parent, forget_exit_handlers
from xmp._processes.report.tracebacks import format_error, message_of, name_of
from xmp._processes.system import environment_changes, finalisation, fork_safety, linux, stdio

from .preloading import silence
from .server import ForkServer
from .spare import Become
from .template_imports import settle, variables_read

__all__ = ["hold_script"]

_GRACE = 0.25
"""The grace in seconds, shorter than the template's, which would otherwise end this process before
its exit handlers."""


def hold_script(
    request: StartScriptHolder,
    connection: Connection,
    lifeline: int,
    streams: list[int],
    idle: float | None,
    become: Become,
) -> None:
    """Import the script and serve its launches; return when the launcher needs it no longer."""
    _, source, launcher, rules = request
    linux.set_name("xmp-script")
    linux.subreaper()
    linux.arm(lifeline)
    forget_exit_handlers()
    sockets = fork_safety.connected_sockets()
    launcher_state.apply(launcher, None)
    os.environ.update(environment_changes.while_loading(rules))
    stdio.take_streams(streams)
    breakpoints.install()
    try:
        with variables_read.noted(script=True):
            import_main(source)
    except BaseException as error:
        connection.send(ImportFailed(format_error(error), f"{name_of(error)}: {message_of(error)}"))
        return
    finally:
        finalisation.before_fork()
        silence()
    culprits = fork_safety.culprits(rules, sockets)
    if culprits:
        connection.send(ForkUnsafe(culprits))
        return
    settle()
    read = variables_read
    connection.send(Ready(os.getpid(), {}, {}, [], {}, read.names(), read.own()))
    ForkServer(connection, lifeline, launcher.pid, idle, become, grace=_GRACE).run()
    finish_parent(_GRACE)
