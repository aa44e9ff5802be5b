"""A replica of a gang after its first call: it waits at its post, runs a call, and comes back.

**At its post** it is in no function of the user's. Handlers of the program run where it waits, but
SIGINT is dropped: one that comes here was meant for the call that is over. The supervisor sends
SIGINT before it sends the next call, and the kernel delivers a signal before the receiving of a
message that was sent after it returns to the program, so none reaches the next call.

**A call ends** when the function has ended, the device has finished what it was given, and what was
written has left this process. Then nothing of it may be left: ``begin_call`` makes the counts and
keys of the next one, and this module refers to no function, arguments, result or traceback.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from xmp import _inside
from xmp._os import signals, signals_at_rest
from xmp._os.excepthook import interrupts_kept
from xmp._payload import Image, load
from xmp._payload.same_code import differs
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.launch import RunCall
from xmp._processes.messages.order import HUNG_UP
from xmp._processes.messages.replica import AtPost
from xmp._processes.messages.timeline import Timeline
from xmp._words.framework import Framework

from .calling import called
from .reports import ExceptHook, exit_called, record, report_raised, send_result
from .role import LoadedCall, Role

__all__ = ["stay"]


def stay(role: Role, framework: Framework | None, inherited: ExceptHook) -> int:
    """Run calls as they come, until none follows. Return the exit code.

    ``inherited`` is the ``sys.excepthook`` with which the replica began.
    """
    channel, number, watched = role.common.channel, 0, bool(role.common.order.settings.hang)
    told = False  # whether the supervisor knows that this replica is at its post
    while True:
        if not told:
            _finish()
            channel.send(AtPost(number))
        signals_at_rest.rest()
        try:
            message, descriptors = channel.receive()
        except Closed:
            return HUNG_UP  # the program has closed all descriptors
        if not isinstance(message, RunCall):
            signals.keep_deferred()
            return 0
        number = message.number
        if message.hang and not watched:
            from .heartbeat import watch_python

            watched = True
            watch_python(role.common.records.own(role.plan.local_rank).ran, message.hang)
        channel.begin_call()
        told = _run(role, framework, message, descriptors, inherited)
        if not told and role.plan.thread_replicas:
            return 1  # its other threads may still be in the function


def _run(
    role: Role,
    framework: Framework | None,
    message: RunCall,
    descriptors: Sequence[int],
    inherited: ExceptHook,
) -> bool:
    """Run one call and report how it has ended. Return whether it has ended well."""
    channel, timeline, sending = role.common.channel, Timeline(), False
    try:
        _inside.begin_call(message.number)
        signals_at_rest.resume()
        with interrupts_kept():
            call = _loaded(message, list(descriptors))
            timeline.ready = timeline.entered = time.monotonic_ns()
        result = called(role, framework, call, timeline, message.number)
        _finish()
        sending = True
        send_result(channel, result, timeline, [], at_post=True)
    except SystemExit as error:
        signals.keep_deferred()
        channel.send(exit_called(error, timeline))
        return False
    except BaseException as error:
        signals.keep_deferred()
        raised = record(error, role.failing_rank, timeline, sending)
        report_raised(channel, raised, error, inherited, stays=True)
        return False
    return True


def _loaded(message: RunCall, descriptors: list[int]) -> LoadedCall:
    image = Image(message.data, message.size)
    if message.data is None:
        image.descriptor = descriptors.pop(0)
    try:
        call = load(image, descriptors)
    finally:
        image.close()
    fn: Any = call[0]
    if differs(fn, message.code):
        raise RuntimeError(
            f"this replica has other code of {fn.__qualname__} (module {fn.__module__}) than the "
            "process that calls it: gang.restart() starts replicas that have the same"
        )
    return call


def _finish() -> None:
    """Leave nothing of the call in this process: what was written, what was counted."""
    _inside.end_call()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the program may have closed it, or put another one there
            stream.flush()
