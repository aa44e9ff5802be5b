"""The process that has imported the launcher's script once and forks all its supervisors."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from xmp._payload.script import MainSource, import_main
from xmp._types import ForkRules

from . import breakpoints, kernel, replica, safety, state
from .rehearsal import rehearse
from .server import Become, Server, settle
from .tracebacks import name_of, told, words_of
from .trial import silence
from .wire import Wire

__all__ = ["hold_script"]


def hold_script(
    request: tuple[Any, ...],
    wire: Wire,
    lifeline: int,
    streams: list[int],
    idle: float | None,
    become: Become,
) -> None:
    """Import the launcher's script once and fork the supervisors of all its launches."""
    source: MainSource = request[2]
    launcher: state.LauncherState = request[3]
    rules: ForkRules = request[4]
    kernel.set_name("xmp-script")
    kernel.subreaper()
    kernel.arm(lifeline)
    replica.forget_exit_handlers()
    sockets = safety.connected_sockets()
    state.apply(launcher, None)
    os.environ.update(state.while_loading(rules))
    state.take_streams(streams)
    breakpoints.install()
    try:
        import_main(source)
    except BaseException as error:
        wire.send(("failed", told(error), f"{name_of(error)}: {words_of(error)}"))
        return
    finally:
        sys.stdout.flush()
        silence()
    culprits = safety.culprits(rules, sockets)
    if culprits:
        wire.send(("unsafe", culprits))
        return
    settle()
    facts = {"pid": os.getpid(), "modules": {}, "after": {}, "slowest": [], "failed": {}}
    wire.send(("ready", facts))
    kernel.disarm(lifeline)
    # Its patience is shorter than the template's, which would end it before its exit handlers.
    Server(wire, lifeline, launcher.pid, idle, become, grace=0.25, rehearse=rehearse).run()
    atexit._run_exitfuncs()
