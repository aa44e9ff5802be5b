"""How a replica ends: what it reports, what it runs at exit, and what it leaves to its parent."""

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
from xmp._processes.messages.exceptions import pack_exception
from xmp._processes.messages.outcomes import packed_outcome
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
    """Send what the function returned; TypeError if it cannot be pickled."""
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
    """The part that cannot be pickled ("the result['a'].lock (lock)"), and what the user raised."""
    try:
        from xmp._payload.culprit import of_result, users_part

        return of_result(result), users_part(error)
    except BaseException:  # the user's code once more; what it raised first is what counts
        return f"the result ({type(result).__name__})", error


def exit_called(error: SystemExit, timeline: Timeline) -> ExitCalled:
    """The report of a SystemExit; a message goes to standard error, as in Python."""
    at, code = time.monotonic_ns(), exit_status(error)
    words = shortened(f"sys.exit({_code_as_text(error, repr)})", _LONGEST_WORDS)
    return ExitCalled(at, code, timeline, words, format_error(error) if code else "")


def exit_status(error: SystemExit) -> int:
    """Write the message of a SystemExit to standard error, as Python does; returns its code."""
    code = exit_code(error)
    if code and not isinstance(_code_of(error), int):
        stream: Any = sys.stderr or sys.__stderr__
        with contextlib.suppress(Exception):  # it may be closed, or None
            stream.write(f"{_code_as_text(error, str)}\n")
    return code


def exit_code(error: SystemExit) -> int:
    """The exit code that Python would give.

    But a number that is not 0 is a failure, though its last eight bits may be 0.
    """
    given = _code_of(error)
    if given is None:
        return 0
    if isinstance(given, int):
        # What a C long cannot hold becomes -1 there (CPython, handle_system_exit).
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
    """The exit code after ``error``: the framework's, if it has one and a message for it, or 1."""
    own = getattr(framework, "failed", None)
    try:
        return int(own(error)) if own is not None and isinstance(error, Exception) else 1
    except Exception:  # a closed stderr, an error without words: the report still has to go out
        return 1


def record(
    error: BaseException, rank: int, timeline: Timeline, final: bool = False
) -> ExceptionRaised:
    """The report of an exception: name, message, traceback, and itself if it can be pickled.

    ``final``: it was raised after the function had returned; frames of xmp say nothing of it.
    """
    if final and log.users_frames(error.__traceback__) is None:
        error = error.with_traceback(None)
    packed, why = pack_exception(error)
    reason = ""
    if why is not None and is_in_function():  # who runs a script has no error object
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
    """Whether a fork of this process has anything to forget."""
    executors: Any = sys.modules.get("concurrent.futures.thread")
    queues = executors._threads_queues if executors is not None else ()
    return bool(atexit._ncallbacks() or _finalize._registry or queues)


def forget_exit_handlers() -> None:
    """After a fork: the parent runs what the parent registered.

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
    # The children of the launcher, and what multiprocessing ends for them, are not ours.
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
    """Finish what a process has begun from which replicas were forked."""

    def hangs(what: str) -> NoReturn:
        _say(f"the finaliser of {what}, has not ended within {seconds:g} s")
        os._exit(1)

    run_exit_handlers()
    for line in finalisation.finish(seconds, hangs):
        _say(f"what was written when the script was imported is lost: {line}")


def report_failure(channel: SupervisorChannel, report: Message) -> None:
    """Send it, and let the SIGTERM that follows it find this process at its end.

    xmp ends all replicas after a failure, this one too, while it still writes out its files.
    SIGKILL comes after ``grace``.
    """
    _hold_sigterm()
    channel.send(report)


def _hold_sigterm() -> None:
    """Note a SIGTERM that would end this process.

    To block it would not do: a native thread, which does not block it, would take it. A program
    that is executed here has the default again.
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
    """Leave the mesh, run what was registered here, finish what was begun here, end.

    A replica that has failed leaves no mesh. A finaliser gets ``grace`` seconds.
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
    """After a failure: wait for this process's threads and children until a SIGTERM ends it."""
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
    """coverage.py saves in an exit handler that a forked process does not inherit."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is not None:
        current.stop()
        current.save()


def _spare_coverage() -> None:
    """Let no SIGTERM, with which xmp ends all after a failure, end this process while it saves.

    With its patches coverage.py saves in an exit handler and in ``os._exit``, too. Between the
    making of a file and its first page a signal leaves an empty one, of which ``coverage combine``
    warns (coverage 7.17, coverage/sqldata.py). SIGKILL still comes after ``grace``.
    """
    if "coverage" in sys.modules:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
