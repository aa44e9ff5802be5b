"""``xmp run``: a script in every replica, as torchrun starts it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import traceback
import uuid
from dataclasses import replace
from typing import Any

from xmp import _registry
from xmp._calls.checks import ranks
from xmp._calls.here import run_here
from xmp._calls.host import launch, plan_for
from xmp._calls.options import OPTIONS, SPAWN, output_of, request_of
from xmp._calls.options import asked as read
from xmp._calls.run_script import status_of
from xmp._inside.script_runs import ScriptRun, run_in_replica, script_folder
from xmp._os import log
from xmp._os.probe.resources import affinity
from xmp._plan.clusters import per_device
from xmp._processes import exit_status
from xmp._processes.output.log_files import opened
from xmp._words.errors import PlanError, ReplicaError, ReplicaTimeout, XmpError, visible
from xmp._words.types import HostsByHand, Output, Request

from . import _engine, _hosts, _run_options, _run_target, _torchrun_words

__all__ = ["run"]

_NOT_STARTED, _FAILED, _TIMED_OUT = 2, 1, 124
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_GPU_RUNTIMES = ("cuda", "rocm", "xpu")
_OF_REQUEST = tuple(each.name for each in SPAWN if each.group in ("request", "env"))
_OF_SETTINGS = tuple(
    each.name for each in SPAWN if each.group in ("settings", "limits", "observer") and each.flag
)


def run(options: argparse.Namespace) -> int:
    """Run the script; the exit status is that of the replica that failed first.

    128 + its number where a signal ended it, 124 (as of timeout(1)) when a time limit was over, 130
    after Ctrl-C, 2 where the options do not fit and nothing was started.
    """
    agents = os.environ.get(_ERROR_FILE, "")
    try:
        return _run(options)
    except PlanError as error:
        _say(error)
        return _NOT_STARTED
    except ReplicaError as error:
        _say(error)
        if agents:
            _record(error, agents)
        _keep(error, options.log_dir)
        return _status_of(error)
    except XmpError as error:
        _say(error)
        _keep(error, options.log_dir)
        return _FAILED
    except KeyboardInterrupt as error:
        if error.args:
            _say(error)
        return 128 + signal.SIGINT


def _run(options: argparse.Namespace) -> int:
    _run_options.from_variables(options, os.environ)
    _run_options.without_variables()
    over = _engine.chosen(options)
    _torchrun_words.translate(options)
    world = _hosts.by_hand(options, os.environ)
    _refuse_in_a_rank(over)
    target = _run_target.read(options)
    run = ScriptRun(
        kind=target.kind,
        target=options.target,
        args=tuple(options.args),
        run_id=options.rdzv_id or "",
        unique=uuid.uuid4().hex,
        max_restarts=options.max_restarts or 0,
        error_file=os.environ.get(_ERROR_FILE, ""),
        started=time.time(),
        source=target.source,
        origin=os.path.abspath(options.target) if target.kind == "path" else "",
        folder=script_folder(options.target) if target.kind == "path" else "",
    )
    request = _request(options, target, world)
    if over is not None:
        run = _engine.with_text(run)
    elif _runs_here(options, request):
        status = _run_here(request, run, options.seed)
        if status is not None:
            return status
    _launch(options, request, run, over)
    return 0


def _refuse_in_a_rank(over: _engine.Chosen | None) -> None:
    """Raise PlanError in one of several processes that another launcher has started here."""
    found = per_device.launches_apart(os.environ)
    if found is not None:
        alone = "To launch from this process alone, give --standalone"
        if found.is_xmps:
            alone = f"To launch in each of them, set {per_device.NESTED}=1"
        if over is not None:
            alone = f"With --engine {over.engine.name} start this command once"
        raise PlanError(
            f"{found.launcher} has started this command for one device ({found.given}), and each "
            "of its processes would launch a world of its own. Have it start the script itself, "
            f"without xmp run. Or {found.advice}. {alone}",
            code="XMP-P09",
        )


def _launch(
    options: argparse.Namespace, request: Request, run: ScriptRun, over: _engine.Chosen | None
) -> None:
    """As ``spawn`` or ``launch`` does, in this process, which ends with the launch."""
    if options.start_method == "fork":
        raise PlanError(
            "--start-method fork: xmp run has no state that replicas could inherit. Allowed: "
            "forkserver, spawn",
            code="XMP-P01",
        )
    named = ((name, getattr(options, name)) for name in _OF_SETTINGS)
    given = {name: value for name, value in named if value is not None}
    asked = read(run_in_replica, (run,), **{**given, "max_restarts": run.max_restarts})
    call = asked.call().using(program=True)
    held = None
    if isinstance(request.world, HostsByHand) and request.world.index < 0:
        request, held = _registry.require("hosts", "joined")(request, call)
    call = call.using(output=_output(options, request))
    if over is None:
        launch(request, call, True, held)
    else:
        over.launch(request, call)


def _request(
    options: argparse.Namespace, target: _run_target.Target, world: HostsByHand | None
) -> Request:
    given = {name: getattr(options, name) for name in _OF_REQUEST}
    if given["nprocs"] in ("auto", "gpu"):
        given["nprocs"] = None
    elif given["nprocs"] == "cpu":
        given |= {"nprocs": len(affinity()), "runtime": given["runtime"] or "cpu"}
    given["env"] = dict(options.env) if options.env else None
    used, late = target.uses
    port = options.master_port or 0
    request = replace(
        request_of(**given), world=world, imports=target.imports, uses=used, late=late,
        store_port=port,
    )  # fmt: skip
    if options.nprocs == "gpu":
        _refuse_without_gpu(request)
    return request


def _refuse_without_gpu(request: Request) -> None:
    plan = plan_for(request, None)
    if plan.runtime not in _GPU_RUNTIMES:
        raise PlanError(
            "--nproc-per-node gpu: xmp finds no GPU that an installed framework can use, and would "
            f"take runtime {plan.runtime!r} ({plan.why}). Give a number, or see `xmp doctor`",
            code="XMP-P06",
        )


def _output(options: argparse.Namespace, request: Request) -> Output | None:
    prefix = True if options.prefix in ("yes", "true", "1") else options.prefix
    show = options.show
    if options.local_ranks_filter:
        show = _chosen_here(options.local_ranks_filter, request)
    folder = options.log_dir
    if options.streams and folder is None:
        import tempfile  # few launches need it

        folder = tempfile.mkdtemp(prefix="xmp-logs-")
        log.say(f"xmp: the log files are in {folder}")
    if folder is not None:
        with contextlib.suppress(OSError):
            os.unlink(_report_in(folder))  # an earlier launch's
    given = {"log_dir": folder, "prefix": prefix, "show": show, "gather_logs": options.gather_logs}
    output = output_of(engine=options.engine, **given)
    return replace(output, streams=options.streams) if output is not None else None


def _chosen_here(text: str, request: Request) -> list[int]:
    """Return the ranks of these local ranks. Raises PlanError for one that there is not."""
    local = ranks("--local-ranks-filter", text) or ()
    replicas = plan_for(request, None).hosts[0].replicas
    unknown = [str(rank) for rank in local if rank >= len(replicas)]
    if unknown:
        raise PlanError(
            f"--local-ranks-filter {text}: there is no local rank {', '.join(unknown)}; this "
            f"launch has 0 to {len(replicas) - 1}",
            code="XMP-P01",
        )
    return [each.rank for each in replicas if each.local_rank in local]


def _runs_here(options: argparse.Namespace, request: Request) -> bool:
    """Return whether a single replica is this process: with the terminal, and nothing between."""
    if options.streams or options.local_ranks_filter or request.nprocs != 1:
        return False
    rows = (option for option in OPTIONS if "run" in option.needs_replica)
    return all(getattr(options, option.name) is None for option in rows)


def _status_of(error: ReplicaError) -> int:
    return _TIMED_OUT if isinstance(error, ReplicaTimeout) else status_of(error)


def _record(error: ReplicaError, path: str) -> None:
    """Report to the agent or operator that has started this command, as torchrun reports to it.

    Kubernetes shows a pod's error where the file is its /dev/termination-log.
    """
    cause: Any = error.failures[0] if error.failures else None
    message, trace = cause.recorded if cause is not None else ("", "")
    extra = {
        "py_callstack": trace or getattr(cause, "traceback", "") or str(error),
        "timestamp": str(int(time.time())),
    }
    said = {
        "message": message or str(error).partition("\n")[0],
        "extraInfo": extra,
        "errorCode": _status_of(error),
    }
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            json.dump({"message": said}, file)
    except OSError as failed:
        print(f"xmp: {_ERROR_FILE}={path} cannot be written: {failed.strerror}", file=sys.stderr)


def _report_in(folder: str) -> str:
    """Return the path of the report; hosts may share the folder."""
    return os.path.join(folder, f"error.{os.uname().nodename}.txt")


def _keep(error: XmpError, folder: str | None) -> None:
    """Write all that is known about the failure into the folder of the log files."""
    if folder is None:
        return
    path = _report_in(folder)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # an engine's log files are elsewhere
        os.close(opened(path))  # refuses what another user has put there
        error.save(path)
    except OSError as failed:
        print(f"xmp: {path} cannot be written: {failed.strerror}", file=sys.stderr)
    else:
        print(f"xmp: all that is known about it is in {path}", file=sys.stderr)


def _say(error: BaseException) -> None:
    text = str(error).replace("Pass runtime= to choose", "Pass --runtime to choose")
    # Other errors quote what replicas wrote, with its colours.
    print(f"xmp: {visible(text) if isinstance(error, PlanError) else text}", file=sys.stderr)


_INTERRUPTED = 130  # 128 + SIGINT


def _run_here(request: Request, script: ScriptRun, seed: int | None) -> int | None:
    """Run the script and return its exit status; a message of ``sys.exit`` is printed.

    None, with nothing begun, in a job of several hosts, which needs the engine. Raises XmpError for
    what does not fit this host, before the script begins.
    """
    raised: list[BaseException] = []

    def main(rank: int) -> None:
        try:
            run_in_replica(rank, script)
        except BaseException as error:  # it must not be taken for an error of xmp
            raised.append(error)

    if run_here(request, main, (), {}, seed) is None:
        return None
    return _status(raised[0]) if raised else 0


def _status(error: BaseException) -> int:
    """As the interpreter ends a script that raises; its traceback begins with the script."""
    if isinstance(error, SystemExit):
        return exit_status(error)
    frames = log.users_frames(error.__traceback__)
    if sys.stderr is not None:
        with contextlib.suppress(Exception):  # the script has closed it, or its reader has gone
            traceback.print_exception(type(error), error, frames)
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
