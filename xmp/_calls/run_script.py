"""``run_script``: a script's first line that runs the script once on every device."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import traceback
import uuid
from typing import TYPE_CHECKING

from xmp import _inside
from xmp._words.errors import PlanError, ReplicaError

from .spawn import public, refuse_while_importing

if TYPE_CHECKING:
    from xmp._payload.script import Program

__all__ = ["run_script", "status_of"]


@public
def run_script() -> None:
    """Run this script once on every device; write it on the script's first line.

    In a process that you have started, it starts one replica per device, in each of which the
    script runs again from its beginning as ``__main__``, with the same arguments. It waits for
    them and ends this process: with status 0, or after the report of the replica that failed with
    that replica's exit code, 128 + the number of the signal that ended it, or 1 for an exception.

    It returns at once in a replica, and in a process that torchrun, Slurm or MPI started for one
    device: the rest of the script runs as that rank. With one process on each host it starts the
    replicas of this host, as ``spawn`` does. For another number of them, without this line:
    ``xmp run -n 4 train.py``.

    Raises:
        PlanError: this is not a script (but a notebook, ``python -c``, standard input), or not its
            main thread; LOCAL_RANK is above 0 without a rank and a world size; this host cannot run
            the replicas.
    """
    if _is_replica():
        return
    _refuse_half_an_identity()
    refuse_while_importing()
    if threading.current_thread() is not threading.main_thread():
        raise PlanError(
            "run_script() ends this process with the status of its replicas, which only the main "
            "thread can do: call it there, on the script's first line",
            code="XMP-P13",
        )
    from xmp._payload.script import program_of_this_process

    program = program_of_this_process()
    if program is None:
        raise PlanError(
            "run_script() runs the script of this command line again, and this is none: a notebook "
            "cell, python -c, standard input or an app. Put the code into a function and call "
            "xmp.spawn.",
            code="XMP-P13",
        )
    try:
        _run_in_replicas(program)
    except ReplicaError as error:
        sys.stderr.write("".join(traceback.format_exception_only(error)))
        sys.exit(status_of(error))
    sys.exit(0)


def _is_replica() -> bool:
    """Return whether this process, or its parent, was started for one device."""
    from xmp._plan.clusters import per_device

    marked = per_device.INSIDE in os.environ
    return marked or _inside.in_a_replica() or per_device.started(os.environ) is not None


def _refuse_half_an_identity() -> None:
    local = os.environ.get("LOCAL_RANK", "")
    whole = all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE"))
    if whole or not local.isdecimal() or int(local) == 0:
        return
    raise PlanError(
        f"LOCAL_RANK={local} without RANK and WORLD_SIZE. Either a launcher that sets no more has "
        "started this script for one device, and replicas started here would start once in each of "
        "its processes: have it set RANK and WORLD_SIZE as well, or start the script once, by "
        "python. Or an earlier program has left LOCAL_RANK in the environment: unset it.",
        code="XMP-P08",
    )


def _run_in_replicas(program: Program) -> None:
    """Run the program in one replica per device. Raise as ``spawn`` does."""
    from xmp._inside.script_runs import ScriptRun, run_in_replica
    from xmp._payload.frameworks_used import frameworks_used
    from xmp._processes import Call
    from xmp._words.types import Request, Settings

    from .host import launch

    run = ScriptRun(
        kind=program.kind,
        target=program.target,
        args=tuple(sys.argv[1:]),
        unique=uuid.uuid4().hex,
        started=time.time(),
    )
    used, late = frameworks_used(program.source, sys.path[0], program.package)
    request = Request(imports=_imports(program), uses=used, late=late)
    launch(request, Call(run_in_replica, (run,), settings=Settings(program=True)), True)


def _imports(program: Program) -> tuple[str, ...]:
    """Return what the rest of the script imports: it decides the runtime, as if imported now."""
    from xmp._payload.top_imports import imports_of_file

    try:
        return imports_of_file(program.source, sys.path[0])
    except (OSError, SyntaxError, ValueError):
        return ()  # without its source


def status_of(error: ReplicaError) -> int:
    """Return the exit status that a shell reports for the replica that failed.

    A KeyboardInterrupt is what SIGINT does to a program in Python, which then ends by that signal.
    """
    if error.failures and error.failures[0].kind == "interrupted":
        return 128 + signal.SIGINT
    if error.signal_name is not None:
        return 128 + _number_of(error.signal_name)
    return error.exit_code or 1


def _number_of(name: str) -> int:
    """Return the number of a signal, also of a real-time one: SIGRTMIN+6."""
    base = re.split("[+-]", name)[0]
    number = getattr(signal, base, None)
    if number is None:
        return int(name.removeprefix("SIG"))  # one that has no name in Python: SIG32
    return int(number) + int(name[len(base) :] or 0)
