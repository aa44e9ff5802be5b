"""What a replica reports of its end: a result, an exit, or an exception and its variables.

After the report of an exception the program's excepthook is called.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of signal: in forks
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from xmp._inside import is_in_function
from xmp._os import log, signals
from xmp._os.excepthook import is_own, without_our_frames
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.outcomes import pack_exception, packed_outcome
from xmp._processes.messages.replica import ExceptionRaised, ExitCalled, ResultReady, VariablesTaken
from xmp._processes.messages.timeline import Timeline
from xmp._processes.report.tracebacks import format_error, message_of, name_of, shortened
from xmp._processes.system.environment_changes import is_off
from xmp._words.framework import Framework

from .channel import SupervisorChannel

__all__ = [
    "ExceptHook", "call_hook", "exit_called", "exit_code", "exit_status", "failed_code",
    "hold_sigterm", "keep_black_box", "parents_hook", "raising_sigterm", "record", "report_failure",
    "report_raised", "send_result",
]  # fmt: skip

_LONGEST_WORDS = 1024
_NO_TEXT = "(a code that cannot be read)"
SWITCH = "XMP_LOCALS"
"""The variable that, set to ``off``, has no variables of frames sent."""


def send_result(
    channel: SupervisorChannel,
    result: Any,
    timeline: Timeline,
    imported: list[str],
    at_post: bool = False,
) -> None:
    """Send the function's result. Raises TypeError if it cannot be pickled.

    ``at_post``: nothing follows it in this call of a gang.
    """
    if result is None:
        none = ResultReady(time.monotonic_ns(), None, 0, timeline, imported, at_post)
        channel.send(none)
        return
    try:
        image = packed_outcome(result)
    except Exception as error:
        what, cause = _unsendable(result, error)
        raise TypeError(f"{what} cannot be sent back: {error}") from cause
    descriptors = [image.descriptor] if image.data is None else []
    now = time.monotonic_ns()
    ready = ResultReady(now, image.data, image.size, timeline, imported, at_post)
    channel.send(ready, descriptors)
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
        with suppress(Exception):  # it may be closed, or None
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


def keep_black_box(framework: Framework | None, path: str) -> None:
    """Write the framework's record of its last collectives, if it has one, for this user alone."""
    read = getattr(framework, "black_box", None)
    with suppress(Exception):  # the failure must still be reported
        found = read() if read is not None else b""
        if found:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(path, flags, 0o600), "wb") as file:
                file.write(found)


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


def report_failure(channel: SupervisorChannel, report: Message) -> None:
    """Send the report of a failure, and hold the SIGTERM that follows it until this process ends.

    xmp ends all replicas after a failure, this one too, while it still writes out its files.
    SIGKILL comes after ``grace``.
    """
    hold_sigterm()
    channel.send(report)


def hold_sigterm() -> None:
    """Note a SIGTERM from now on, instead of being ended by it.

    Blocking it would not suffice: a native thread that does not block it would take it. A program
    that is executed here gets the default again.
    """
    if _signal.getsignal(_signal.SIGTERM) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGTERM, _note)


def _note(number: int, frame: Any) -> None:
    signals.held_ends.append(number)


class _SigtermHeld(BaseException):
    """A SIGTERM has come that ``hold_sigterm`` has held, or would have."""


@contextmanager
def raising_sigterm() -> Iterator[None]:
    """Within the block, raise an exception on a SIGTERM, also on one that has been held already.

    Do nothing if the program has a handler of its own.
    """
    if _signal.getsignal(_signal.SIGTERM) is not _note:
        yield
        return
    try:
        _signal.signal(_signal.SIGTERM, _raise)
        if signals.held_ends:
            raise _SigtermHeld
        yield
    finally:
        _signal.signal(_signal.SIGTERM, _note)


def _raise(number: int, frame: Any) -> None:
    _note(number, frame)
    raise _SigtermHeld


ExceptHook = Callable[..., Any]


def parents_hook(method: str) -> ExceptHook:
    """Return the ``sys.excepthook`` with which a replica begins, before it sets its own."""
    # Templates and fresh interpreters import only modules that the call needs: no hook is set.
    return sys.excepthook if method == "inherit" else sys.__excepthook__


def report_raised(
    channel: SupervisorChannel,
    report: ExceptionRaised,
    error: BaseException,
    inherited: ExceptHook,
    stays: bool = False,
) -> None:
    """Send the report of an exception and the variables of the user's innermost frames.

    Then call the program's ``sys.excepthook``, unless the function has ended well. ``stays``: the
    replica may live on.
    """
    if stays:
        channel.send(report)
    else:
        report_failure(channel, report)
    if not is_off(SWITCH):
        with suppress(Exception):  # the failure itself has been reported
            _send_variables(channel, report.rank, error)
    if not report.final:
        call_hook(error, inherited)


def _send_variables(channel: SupervisorChannel, rank: int, error: BaseException) -> None:
    # Imported here, after a failure: a module that a template has loaded costs every replica pages.
    from xmp._os.frame_values import taken
    from xmp._processes.report.short_text import library_of

    if text := taken(error, library_of):
        channel.send(VariablesTaken(rank, text))


def call_hook(error: BaseException, inherited: ExceptHook) -> None:
    """Call the ``sys.excepthook`` that this program has set, as Python would, after the report.

    A hook that blocks is ended like anything else that a failed replica still does: by SIGKILL
    after ``grace``. The ``inherited`` hook of a launcher that was forked (IPython's, Sentry's) is
    not called: the launch raises in the launcher, and Python calls it there. Neither is xmp's own,
    which only prints what the report says.
    """
    hook = _below_torch(sys.excepthook)
    if any(hook is each for each in (inherited, sys.__excepthook__, None)) or is_own(hook):
        return
    try:
        with signals.as_usual():  # code of the program, which may wait for ever
            hook(type(error), error, without_our_frames(error.__traceback__))
    except BaseException:  # SystemExit too: the end of this replica has already been reported
        with suppress(BaseException):
            sys.stderr.write("Error in sys.excepthook:\n")
            traceback.print_exc()


def _below_torch(hook: Any) -> Any:
    """Return the hook that torch's own calls (torch 2.13, distributed_c10d.py): it adds only the
    rank."""
    if getattr(hook, "__module__", None) != "torch.distributed.distributed_c10d":
        return hook
    kept = dict(zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=False))
    return kept["old_hook"].cell_contents if "old_hook" in kept else None
