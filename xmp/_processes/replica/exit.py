"""The end of a replica: its report, what it runs at exit, and what it leaves to its parent."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of signal: in forks
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import process, util
from typing import Any, NoReturn

from xmp._inside import is_in_function
from xmp._os import log, signals
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.outcomes import pack_exception, packed_outcome
from xmp._processes.messages.replica import ExceptionRaised, ExitCalled, ResultReady
from xmp._processes.messages.timeline import Timeline
from xmp._processes.report.tracebacks import format_error, message_of, name_of, shortened
from xmp._processes.system import finalisation
from xmp._words.framework import Framework

from .channel import SupervisorChannel

__all__ = [
    "exit_called",
    "exit_code",
    "exit_status",
    "failed_code",
    "finish_parent",
    "forget_exit_handlers",
    "has_exit_handlers",
    "leave",
    "record",
    "report_failure",
    "run_exit_handlers",
    "send_result",
]

_finalize: Any = weakref.finalize
_LONGEST_WORDS = 1024
_NO_TEXT = "(a code that cannot be read)"


def send_result(
    channel: SupervisorChannel, result: Any, timeline: Timeline, imported: list[str]
) -> None:
    """Send the function's result. Raises TypeError if it cannot be pickled."""
    try:
        image = packed_outcome(result)
    except Exception as error:
        what, cause = _unsendable(result, error)
        raise TypeError(f"{what} cannot be sent back: {error}") from cause
    descriptors = [image.descriptor] if image.data is None else []
    now = time.monotonic_ns()
    channel.send(ResultReady(now, image.data, image.size, timeline, imported), descriptors)
    image.close()


def _unsendable(result: Any, error: Exception) -> tuple[str, BaseException | None]:
    """Return the unpicklable part ("the result['a'].lock (lock)"), and the user's error if any."""
    try:
        from xmp._payload.culprit import of_result, users_part

        return of_result(result), users_part(error)
    except BaseException:  # this runs the user's code once more; its first error is the one to show
        return f"the result ({type(result).__name__})", error


def exit_called(error: SystemExit, timeline: Timeline) -> ExitCalled:
    """Return the report of a SystemExit; write its message to standard error, as Python does."""
    at, code = time.monotonic_ns(), exit_status(error)
    words = shortened(f"sys.exit({_code_as_text(error, repr)})", _LONGEST_WORDS)
    return ExitCalled(at, code, timeline, words, format_error(error) if code else "")


def exit_status(error: SystemExit) -> int:
    """Write the message of a SystemExit to standard error, as Python does. Return its code."""
    code = exit_code(error)
    if code and not isinstance(_code_of(error), int):
        stream: Any = sys.stderr or sys.__stderr__
        with contextlib.suppress(Exception):  # it may be closed, or None
            stream.write(f"{_code_as_text(error, str)}\n")
    return code


def exit_code(error: SystemExit) -> int:
    """Return the exit code that Python would give, except that only 0 itself is a success.

    Any other number is a failure, even one whose last eight bits are 0.
    """
    given = _code_of(error)
    if given is None:
        return 0
    if isinstance(given, int):
        # CPython (handle_system_exit) makes -1 of a number that a C long cannot hold.
        status = given & 0xFF if -(2**63) <= given < 2**63 else 255
        return status or (255 if given else 0)
    return 1


def _code_of(error: SystemExit) -> Any:
    try:
        return error.code
    except BaseException:  # a subclass may have a property of this name
        return _NO_TEXT


def _code_as_text(error: SystemExit, text: Callable[[Any], str]) -> str:
    given = _code_of(error)
    try:
        return "" if given is None else text(given)
    except BaseException:  # __str__ and __repr__ are the user's code
        return f"<{type(given).__name__} object that has no text>"


def failed_code(framework: Framework | None, error: BaseException) -> int:
    """Return the exit code after ``error``: the framework's (it writes a message as well), or 1."""
    own = getattr(framework, "failed", None)
    try:
        return int(own(error)) if own is not None and isinstance(error, Exception) else 1
    except Exception:  # a closed stderr, an error without text: the report must still be sent
        return 1


def record(
    error: BaseException, rank: int, timeline: Timeline, final: bool = False
) -> ExceptionRaised:
    """Return the report of an exception: name, message, traceback, and itself if it can be pickled.

    ``final``: it was raised after the function had returned; a traceback of xmp's frames alone is
    left out then.
    """
    if final and log.users_frames(error.__traceback__) is None:
        error = error.with_traceback(None)
    packed, why = pack_exception(error)
    reason = ""
    if why is not None and is_in_function():  # a launch that runs a script gets no error object
        reason = f"{name_of(why)}: {message_of(why).strip()}".partition("\n")[0]
    return ExceptionRaised(
        at=time.monotonic_ns(),
        rank=rank,
        error_type=name_of(error),
        message=shortened(message_of(error), 32 * 1024),
        traceback=format_error(error),
        exception=packed,
        unsent=shortened(reason, 300),
        interrupted=isinstance(error, KeyboardInterrupt),
        final=final,
        timeline=timeline,
    )


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


def run_exit_handlers() -> None:
    """Run what this process has registered: multiprocessing's finalizers, then exit handlers.

    logging has registered its handler in the parent; here it flushes what was logged since.
    """
    util._exit_function()  # type: ignore[attr-defined]  # joins its own children
    _spare_coverage()
    atexit._run_exitfuncs()
    logging: Any = sys.modules.get("logging")
    if logging is not None:
        logging.shutdown()


def finish_parent(seconds: float) -> None:
    """Run the exit handlers and finalisers of a process from which replicas were forked."""

    def hangs(what: str) -> NoReturn:
        _say(f"the finaliser of {what}, has not ended within {seconds:g} s")
        os._exit(1)

    run_exit_handlers()
    for line in finalisation.finish(seconds, hangs):
        _say(f"what was written when the script was imported is lost: {line}")


def report_failure(channel: SupervisorChannel, report: Message) -> None:
    """Send the report of a failure, and hold the SIGTERM that follows it until this process ends.

    xmp ends all replicas after a failure, this one too, while it still writes out its files.
    SIGKILL comes after ``grace``.
    """
    _hold_sigterm()
    channel.send(report)


def _hold_sigterm() -> None:
    """Note a SIGTERM from now on, instead of being ended by it.

    Blocking it would not suffice: a native thread that does not block it would take it. A program
    that is executed here gets the default again.
    """
    if _signal.getsignal(_signal.SIGTERM) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGTERM, _note)


def _note(number: int, frame: Any) -> None:
    signals.held_ends.append(number)


def _release_sigterm() -> None:
    """Let a SIGTERM end this process, also one that came while it was held."""
    if _signal.getsignal(_signal.SIGTERM) is _note:
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        if signals.held_ends:
            _signal.raise_signal(_signal.SIGTERM)


def leave(
    framework: Framework | None, channel: SupervisorChannel, code: int, grace: float
) -> NoReturn:
    """Leave the mesh, run the exit handlers and finalisers registered here, and end.

    A replica that has failed does not leave the mesh. A finaliser gets ``grace`` seconds.
    """
    linger = getattr(framework, "linger", None) if code else None
    steps: list[Callable[[], Any]] = [framework.leave] if framework is not None and not code else []
    steps += [_wait_for_others] if code else []
    steps += [threading._shutdown, run_exit_handlers, _save_coverage]  # type: ignore[attr-defined]
    for step in steps:
        try:
            with signals.as_usual():  # code of the program, which may wait for ever
                step()
        except BaseException as error:
            if not code:
                report_failure(channel, record(error, -1, Timeline()))
            code = code or 1
    _hold_sigterm()  # half a file is worse than none

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


def _wait_for_others() -> None:
    """Wait, after a failure, for this process's threads and children, until a SIGTERM ends it."""
    threads = [each for each in threading.enumerate() if not each.daemon]
    if len(threads) > 1 or process.active_children():
        finalisation.write_out()
        _release_sigterm()
        threading._shutdown()  # type: ignore[attr-defined]
        util._exit_function()  # type: ignore[attr-defined]
        _hold_sigterm()


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
