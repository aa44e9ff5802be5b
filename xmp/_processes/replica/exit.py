"""The end of a replica: what it runs at exit, and what it leaves to its parent."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import process, util
from typing import Any, NoReturn

from xmp._os import signals
from xmp._os.excepthook import interrupts_kept
from xmp._processes.messages.timeline import Timeline
from xmp._processes.system import finalisation
from xmp._words.framework import Framework

from .channel import SupervisorChannel
from .reports import hold_sigterm, raising_sigterm, record, report_failure

__all__ = [
    "finish_parent", "forget_exit_handlers", "has_exit_handlers", "leave", ]  # fmt: skip

_finalize: Any = weakref.finalize


def has_exit_handlers() -> bool:
    """Return whether a fork of this process has any exit handlers to forget."""
    executors: Any = sys.modules.get("concurrent.futures.thread")
    queues = executors._threads_queues if executors is not None else ()
    return bool(atexit._ncallbacks() or _finalize._registry or queues)


def forget_exit_handlers() -> None:
    """Forget the parent's exit handlers, after a fork: the parent runs them itself.

    A child that ran the handlers of inherited TemporaryDirectory objects would delete the
    folders that all processes use.
    """
    atexit._clear()
    _finalize._registry.clear()
    # finalize registers its one exit handler once per process: the next one must do it again.
    if _finalize._registered_with_atexit:
        _finalize._registered_with_atexit = False
    executors: Any = sys.modules.get("concurrent.futures.thread")
    if executors is not None:
        executors._threads_queues.clear()  # threads that exist in the parent alone
    # The launcher's children, and multiprocessing's finalizers for them, are not ours.
    process._children = set()  # type: ignore[attr-defined]
    util._finalizer_registry.clear()  # type: ignore[attr-defined]
    finalisation.begin()


def _join_children() -> None:
    util._exit_function()  # type: ignore[attr-defined]  # and runs multiprocessing's finalizers


def _run_registered() -> None:
    """Run the exit handlers of this process, but logging's: that is the last step."""
    logging: Any = sys.modules.get("logging")
    if logging is not None:
        atexit.unregister(logging.shutdown)
    _spare_coverage()
    atexit._run_exitfuncs()


def _flush_logs() -> None:
    """Flush what was logged. An interrupt comes after it: half a record is worse than none."""
    logging: Any = sys.modules.get("logging")
    if logging is not None:
        with signals.blocked():
            logging.shutdown()


_EXIT_STEPS = (_join_children, _run_registered, _flush_logs)
"""What a process runs at its end; a replica runs each, whatever the one before has raised."""


def finish_parent(seconds: float) -> None:
    """Run the exit handlers and finalisers of a process from which replicas were forked."""

    def hangs(what: str) -> NoReturn:
        _say(f"the finaliser of {what}, has not ended within {seconds:g} s")
        os._exit(1)

    for step in _EXIT_STEPS:
        step()
    for line in finalisation.finish(seconds, hangs):
        _say(f"what was written when the script was imported is lost: {line}")


def leave(
    framework: Framework | None, channel: SupervisorChannel, code: int, grace: float
) -> NoReturn:
    """Leave the mesh, run the exit handlers and finalisers registered here, and end.

    A replica that has failed does not leave the mesh. A finaliser gets ``grace`` seconds.
    """
    linger = getattr(framework, "linger", None) if code else None
    steps: list[Callable[[], Any]] = [framework.leave] if framework is not None and not code else []
    if not code or _others_have_ended():
        steps.append(threading._shutdown)  # type: ignore[attr-defined]
    steps += [*_EXIT_STEPS, _save_coverage]
    for step in steps:
        try:
            # Code of the program, which may wait for ever.
            with signals.as_usual(), interrupts_kept(all_of_handlers=False):
                step()
        except BaseException as error:
            if not code:
                report_failure(channel, record(error, -1, Timeline()))
            code = code or 1
    hold_sigterm()  # half a file is worse than none

    def hangs(what: str) -> NoReturn:
        words = f"the finaliser of {what}, has not ended within {grace:g} s (grace)"
        if not code:
            channel.send(record(TimeoutError(words), -1, Timeline()))
        _say(words)
        os._exit(code or 1)

    for line in finalisation.finish(grace, hangs):
        _say(f"what this replica has written is lost: {line}")
    if linger is not None:
        linger()
    os._exit(code)


def _others_have_ended() -> bool:
    """Wait, after a failure, for this process's threads and children.

    On a SIGTERM give them up: return False, and have the exit handlers, which come next, not wait
    for them either. The threads end with this process, the children with its process group.
    """
    if not _lasting_threads() and not process.active_children():
        return True
    finalisation.write_out()
    try:
        with signals.as_usual(), raising_sigterm():
            # Not threading._shutdown: Python 3.13 prints there what a handler raises.
            for call in reversed(threading._threading_atexits):  # type: ignore[attr-defined]
                call()
            for each in _lasting_threads():
                each.join()
            for child in process.active_children():
                if not child.daemon:
                    child.join()
    except BaseException:
        lasting = [each for each in process.active_children() if not each.daemon]
        process._children.difference_update(lasting)  # type: ignore[attr-defined]
        return False
    return True


def _lasting_threads() -> list[threading.Thread]:
    """Return the threads for which Python would wait."""
    own = threading.current_thread()
    return [each for each in threading.enumerate() if not each.daemon and each is not own]


def _say(words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"xmp: {words}\n".encode())


def _save_coverage() -> None:
    """Save coverage.py's data: its exit handler is not inherited by a forked process."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is not None:
        current.stop()
        current.save()


def _spare_coverage() -> None:
    """Block SIGTERM, with which xmp ends all replicas after a failure, while coverage.py saves.

    With its patches coverage.py saves in an exit handler and in ``os._exit``, too. A signal between
    the making of its file and the first page leaves an empty file, of which ``coverage combine``
    warns (coverage 7.17, coverage/sqldata.py). SIGKILL still comes after ``grace``.
    """
    if "coverage" in sys.modules:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
