"""The engine: it starts, watches and ends processes, and does not know what a device is.

Four rooms are named after the process that runs their code, ``launcher > template > supervisor >
replica``; the others are used by these: ``terminal``, ``output``, ``report``, ``messages``,
``system``. This module is the engine's face: the rest of xmp imports nothing else of it, except
``_commands``, which looks at launches of other programs (``system``, ``report``). A room is loaded
when a function here needs it, so that ``import xmp`` and a template stay small.

Tests: ``tests/launcher``, ``tests/supervisor``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp._os import log, proc, signals
from xmp._processes.system import launch_conditions
from xmp._words.errors import PlanError, StartError

if TYPE_CHECKING:
    from xmp._words.types import JobPlan, Observer

    from .launcher.context import ProcessContext
    from .launcher.events import EventStream
    from .launcher.job import Call, HostLink
    from .launcher.launch import Launch
    from .launcher.restarts import RestartingLaunch
    from .launcher.results import Results
    from .messages.timeline import StartTimeline, Timeline
    from .replica.reports import exit_status
    from .replica.seeding import seed_all
    from .report.bug_report import save_report
    from .report.ipython import render, rendered
    from .system.descriptors import Held, standard_numbers_taken
    from .system.interpreter import fresh_interpreter
    from .system.linux import continue_on_hang_up
    from .terminal.console import on_quit
    from .terminal.progress import said_here

__all__ = [
    "Call", "EventStream", "Held", "Launch", "ProcessContext", "Results", "StartTimeline",
    "Timeline", "continue_on_hang_up", "event_stream", "exit_status", "fresh_interpreter", "launch",
    "make_log_files", "on_quit", "ready", "render", "rendered", "said_here", "save_report",
    "search_path_changed", "seed_all", "settled", "shutdown", "standard_numbers_taken", "start",
    "warm_up",
]  # fmt: skip

_LAZY = {
    "Call": "launcher.job",
    "Launch": "launcher.launch",
    "ProcessContext": "launcher.context",
    "Results": "launcher.results",
    "StartTimeline": "messages.timeline",
    "EventStream": "launcher.events",
    "Held": "system.descriptors",
    "Timeline": "messages.timeline",
    "continue_on_hang_up": "system.linux",
    "exit_status": "replica.reports",
    "fresh_interpreter": "system.interpreter",
    "on_quit": "terminal.console",
    "render": "report.ipython",
    "rendered": "report.ipython",
    "said_here": "terminal.progress",
    "save_report": "report.bug_report",
    "seed_all": "replica.seeding",
    "standard_numbers_taken": "system.descriptors",
}

if not TYPE_CHECKING:  # a type checker would take every name as defined

    def __getattr__(name: str) -> Any:
        """Load the module of a name that is used for the first time."""
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value


def launch(
    call: Call,
    attempt: Callable[[Call], Launch],
    join: bool,
    handle: Callable[[Launch | RestartingLaunch], ProcessContext[Any]] | None = None,
) -> ProcessContext[Any] | Results[Any]:
    """Make the first attempt, and further ones while ``call.settings.max_restarts`` allows.

    ``attempt`` plans and calls ``start``, for a call that differs in its limits, its grace and the
    number of earlier attempts. With ``join``, wait for the results and return them; else return
    what ``handle`` makes of the launch. An exception from a signal handler of the program ends the
    launch in order before it propagates: the caller gets no handle.
    """
    context: ProcessContext[Any] | None = None
    try:
        with signals.deferred():
            context = (handle or _handle)(_launched(ready(call), attempt))
            if join:
                return context._results(owned=True)
            context._launch.watch_alone()
            signals.returning(context.terminate)
        return context
    except BaseException:
        if context is not None:
            context.terminate()
        raise


def ready(call: Call) -> Call:
    """Return the call as this process can launch it. Raises StartError if it cannot launch."""
    _refuse_bare_host()
    return _without_forks(call)


def _launched(call: Call, attempt: Callable[[Call], Launch]) -> Launch | RestartingLaunch:
    if not call.settings.max_restarts:
        return attempt(call)
    from .launcher.restarts import RestartingLaunch

    call = replace(call, telling=event_stream(call.observer, several=True))
    return RestartingLaunch(call, attempt)


def _handle(launch: Launch | RestartingLaunch) -> ProcessContext[Any]:
    from .launcher.context import ProcessContext  # not above: see _head_start

    return ProcessContext(launch)


def start(
    call: Call,
    plan: JobPlan,
    called: int,
    leases: Mapping[str, int] | None = None,
    release: Callable[[], None] = lambda: None,
    hosts: HostLink | None = None,
) -> Launch:
    """Start the replicas of this host's part of a plan; return when each of them exists.

    ``called`` is when the user called (monotonic nanoseconds), ``leases`` has the descriptors of
    listening ports, ``release`` is called when the launch has ended, ``hosts`` is the link to the
    other hosts of the launch. Raises PlanError, TypeError and StartError; nothing is started then.
    """
    _refuse_foreign_pids()
    if why := launch_conditions.refusal_of_replicas(len(plan.hosts[0].replicas)):
        raise StartError(why)
    make_log_files(call, plan)
    with _head_start(plan, call.settings.start_method):
        from .launcher.job import Job
        from .launcher.supervised import SupervisedLaunch

        if call.telling is None:
            call = replace(call, telling=event_stream(call.observer))
        job = Job.of(call, plan, called, leases or {}, hosts)
        if call.settings.stays:
            from .launcher.gang_launch import GangLaunch

            launch: SupervisedLaunch = GangLaunch(job, release)
        else:
            launch = SupervisedLaunch(job, release)
        try:
            launch.start()
        except StartError:
            if not (call.settings.max_restarts and launch.outcome.orphaned):
                raise
            # The attempt has failed, and is restarted as if it had failed a moment later.
    return launch


def make_log_files(call: Call, plan: JobPlan) -> None:
    """Make the files of ``log_dir`` on this host. Raises PlanError if they cannot be made."""
    if call.settings.output is not None:
        from .output.log_files import prepare

        prepare(call.settings.output, plan, truncate=not call.settings.restart_count)


def settled(call: Call, plan: JobPlan) -> Call:
    """Return the call with a start method that works here: a notebook kernel cannot be forked."""
    if call.settings.start_method != "fork":
        return call
    from .launcher.start_methods import settled

    return settled(call, plan.fork_rules)


_HANDLES = f"{__name__}.launcher.context"
"""Importing it loads all of the launcher's room (45 ms) and has templates end with this process."""


@contextmanager
def _head_start(plan: JobPlan, method: str) -> Iterator[None]:
    """Start the template of the first launch, so that it loads while this process imports the
    engine."""
    from .launcher.template_key import TemplateKey
    from .launcher.template_pool import switched_off, templates

    first = _HANDLES not in sys.modules and method == "forkserver" and not switched_off()
    if first:
        templates.get(TemplateKey.of(plan))
    importlib.import_module(_HANDLES)
    try:
        yield
    except (TypeError, PlanError):
        if first:
            templates.close()  # a refused call leaves no process behind
        raise


def warm_up(plan: JobPlan, packages: Iterable[str]) -> None:
    """Start a template that imports these packages, unless templates are switched off."""
    from .launcher.template_key import TemplateKey
    from .launcher.template_pool import switched_off, templates

    if not switched_off():
        _refuse_bare_host()
        _refuse_foreign_pids()
        needs = TemplateKey.of(plan, packages)
        templates.get(needs).prepare(needs)
        importlib.import_module(_HANDLES)


def search_path_changed() -> None:
    """End the templates that hold a package which an import would now take from elsewhere."""
    templates = sys.modules.get(f"{__name__}.launcher.template_pool")
    if templates is not None:
        templates.templates.end_moved()


def _without_forks(call: Call) -> Call:
    """Use fresh interpreters if a library forbids forks. Raises StartError if they cannot help."""
    patch = launch_conditions.patch_of_this_process()
    if patch is None or (call.settings.start_method == "spawn" and patch.allows_spawn):
        return call
    if call.settings.start_method == "forkserver" and patch.allows_spawn:
        text = '%s: replicas are fresh interpreters, as with start_method="spawn"'
        log.warning(text, patch.text, once=True)
        return call.using(start_method="spawn")
    spawn = 'use start_method="spawn", or ' if patch.allows_spawn else ""
    how = f"{spawn}launch from a process that has not called it"
    raise StartError(f"{patch.text}, and xmp cannot launch so: {how}", code="XMP-S05")


def _refuse_bare_host() -> None:
    """Raise StartError if the host lacks something that every launch needs."""
    if why := launch_conditions.refusal():
        raise StartError(why)


def _refuse_foreign_pids() -> None:
    """Raise StartError if a pid may name a process of others, which would get our signals."""
    if why := proc.refusal():
        raise StartError(why)


def shutdown() -> None:
    """End the templates of this process; see ``xmp.shutdown``."""
    from .launcher.launch_registry import reap_finished
    from .launcher.template_pool import templates

    with signals.deferred():
        reap_finished()
        templates.close()


def event_stream(observer: Observer | None, several: bool = False) -> EventStream | None:
    """Return the event stream of one call; None if the user has not asked for events."""
    if observer is None or observer.events is None:
        return None
    from .launcher.events import EventStream

    return EventStream(observer, several)
