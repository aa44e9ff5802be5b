"""A replica: one process that calls the user's function with its rank.

The supervisor forks it (``be_replica``). With ``start_method="spawn"`` it then executes a
``fresh_interpreter``, which receives the order. Both continue in ``run``.

A forked replica has the modules that the template, the script and the call have imported; a fresh
interpreter imports them itself. A replica is the only process that may touch a device: it enters
its framework, then calls the function. It keeps open its standard streams, its layout's descriptors
and the leased ports.

It ends when the function has returned, raised or exited and the report has been sent (in a gang,
when no call follows: ``staying``); or by a signal from the supervisor, or from the kernel when the
supervisor is gone.
"""

from __future__ import annotations

import os
import select
import sys
import time
import traceback
from typing import NoReturn

from xmp import _inside
from xmp._os import signals
from xmp._os.excepthook import interrupts_kept
from xmp._processes.messages import launcher_state
from xmp._processes.messages.order import HUNG_UP
from xmp._processes.system import thread_pools
from xmp._processes.system.descriptors import is_socket
from xmp._processes.system.modules import installed, modules_since
from xmp._words.framework import Framework

from . import seeding
from .calling import called
from .exit import forget_exit_handlers, leave
from .reports import (
    ExceptHook,
    exit_called,
    failed_code,
    keep_black_box,
    parents_hook,
    record,
    report_failure,
    report_raised,
    send_result,
)
from .role import Changes, ChildEnds, Role
from .settling import ForkState, replace_image, settle_in

__all__ = ["be_replica", "end_unreported", "run"]


def be_replica(role: Role, parent: ForkState, ends: ChildEnds, variables: Changes) -> NoReturn:
    """Run the replica from the fork's first line on; ``variables`` are this replica's own."""
    role.timeline.born = time.monotonic_ns()
    try:
        settle_in(role, parent, ends, variables)
        common, plan = role.common, role.plan
        method = common.order.method
        if method == "exec":
            replace_image(common.layout)
        if parent.has_exit_handlers:
            forget_exit_handlers()
        # A template's pools were loaded with one thread each, a launcher's with any number.
        if plan.threads and (method == "inherit" or plan.threads > 1):
            thread_pools.set_threads(plan.threads)
        common.channel.local_rank = plan.local_rank
        run(role)
    except BaseException:
        end_unreported(role.common.layout.channel)
    finally:
        os._exit(1)


def end_unreported(channel: int) -> NoReturn:
    """End in an exception handler where no message can be sent: the supervisor sees the exit code.

    The supervisor keeps the traceback that is written here. None is written in a process that has
    closed all descriptors.
    """
    try:
        if not is_socket(channel):
            os._exit(HUNG_UP)
        traceback.print_exc()
    finally:
        os._exit(1)


def run(role: Role) -> None:
    """Be the replica, from the first line that may fail to the last; never return."""
    common, plan, timeline = role.common, role.plan, role.timeline
    channel = common.channel
    framework: Framework | None = None
    code, sending, known, hook = 1, False, len(sys.modules), parents_hook(common.order.method)
    try:
        with interrupts_kept():
            _begin(role)
            # The framework first: a script that is imported only here may start a device.
            framework = common.enter(role.info)
            _inside.settle(role.info, framework)
            if common.order.call.state.traced:
                launcher_state.begin_tracing(common.order.call.state)
            call = common.load()
            if common.order.settings.seed is not None:
                seeding.seed_all(common.order.settings.seed)
            elif common.streams is not None:
                common.streams.begin()
            timeline.ready = timeline.entered = time.monotonic_ns()
            channel.report_entered()
        result = called(role, framework, call, timeline)
        _wait_for_batch(common.layout.batch_made)
        # Modules that the first replica had to import, the template may import for later launches.
        imported = installed(modules_since(known)) if plan.local_rank == 0 else []
        sending = True
        send_result(channel, result, timeline, imported)
        code = 0
    except SystemExit as error:
        signals.keep_deferred()
        report = exit_called(error, timeline)
        code = report.code
        report_failure(channel, report) if code else channel.send(report)
    except BaseException as error:
        signals.keep_deferred()
        code = failed_code(framework, error)
        raised = record(error, role.failing_rank, timeline, sending)
        _keep_black_box(role, framework)
        report_raised(channel, raised, error, hook)
    code = code or _stay(role, framework, hook)
    leave(framework, channel, code, common.order.settings.grace)


def _stay(role: Role, framework: Framework | None, hook: ExceptHook) -> int:
    """Run further calls, in a gang. Return the exit code."""
    if not role.common.order.settings.stays:
        return 0
    from .staying import stay  # most replicas leave

    return stay(role, framework, hook)


def _keep_black_box(role: Role, framework: Framework | None) -> None:
    output = role.common.order.settings.output
    if output is not None and output.log_dir is not None:
        keep_black_box(framework, output.black_box(role.plan))


def _begin(role: Role) -> None:
    """Become the replica: from here on, an interrupt that has come since the fork is reported."""
    common = role.common
    launcher_state.restore_mask(common.order.call.state)
    role.identity.take()
    record = common.records.own(role.plan.local_rank)
    record.ran()
    _inside.take_over(record)
    if common.order.settings.hang:
        from .heartbeat import watch_python  # most launches have no hang_timeout

        watch_python(record.ran, common.order.settings.hang)


def _wait_for_batch(batch_made: int) -> None:
    """Wait until the first batch is made (at most 1 s): the ends of replicas slow other starts."""
    if batch_made >= 0:
        watch = select.poll()
        watch.register(batch_made, select.POLLIN)
        watch.poll(1000)  # milliseconds
