"""What a launch sends its supervisor: the packed call, the order, and the descriptors beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp._inside.launch_key import KEY_SIZE
from xmp._os import log
from xmp._payload import Image, Packed, pack
from xmp._payload.script import MainSource, main_source
from xmp._processes.messages import launcher_state
from xmp._processes.messages.order import LaunchOrder, PackedCall
from xmp._processes.system import linux
from xmp._words.types import Output

from .job import Call, Job
from .start_methods import StartMethod

if TYPE_CHECKING:
    from xmp._processes.messages.launcher_state import LauncherState
    from xmp._processes.messages.logging_setup import LoggingSetup

__all__ = ["make_order", "packed_for_hosts"]

_HOW = {
    "inherit": "replicas are forked from this process",
    "fork": "replicas are forked from the supervisor",
    "exec": "replicas are fresh interpreters",
}
_Call = tuple[PackedCall, Packed | None, int | None]
"""A packed call, what holds its file, and the descriptor of this process's resource tracker."""
_KNOWN = ": in an earlier launch a fork was not safe after the function was loaded"


def make_order(
    job: Job,
    start_method: StartMethod,
    phases: str,
    output: Output | None,
    cell: bytes,
    at_end: Callable[[Callable[[], None]], Any],
) -> tuple[LaunchOrder, Packed | None, list[int]]:
    """Return the order of a launch, its packed call, and its descriptors without the streams.

    ``at_end`` takes what closes them. Raises TypeError for a call that cannot be packed.
    """
    plan = job.plan
    call, packed, tracker = _given(job.packed) if job.packed else _own(job, at_end)
    state = launcher_state.with_variables(call.state, dict(plan.env))
    if call.cell:  # a notebook on another host shows it
        output = Output()
    order = LaunchOrder(
        host=job.host,
        world_size=plan.world_size,
        runtime=plan.runtime,
        framework=plan.framework,
        env_by_rank=plan.env_by_rank,
        settings=replace(job.settings, output=job.settings.output or output),
        call=replace(call, state=state, cell=call.cell or cell),
        rules=start_method.key.rules,
        method=_method(job, start_method.is_unsafe(job.identity, call.main)),
        leases=tuple(job.leases),
        called=job.called,
        events=job.telling is not None or (job.relay is not None and job.relay.events),
        phases=phases,
        several_hosts=job.hosts is not None,
        for_driver=job.hosts is not None and job.relay is not None,
        key=os.urandom(KEY_SIZE) if job.hosts is None else job.hosts.replica_key(),
    )
    image = [call.image] if order.has_file else []
    trackers = [] if tracker is None else [tracker]
    objects = packed.descriptors if packed else []
    return order, packed, [*image, *trackers, *job.leases.values(), *objects]


def _own(job: Job, at_end: Callable[[Callable[[], None]], Any]) -> _Call:
    """Pack what this process launches itself: its function, its state, its resource tracker."""
    inherits = job.settings.start_method == "fork"
    main = None if inherits or job.settings.program else main_source()
    state, tracker = launcher_state.capture()
    packed = None if inherits else pack(job.fn, job.args, job.kwargs, linux.memory_file)
    if packed is not None:
        at_end(packed.close)
    logging = _logging() if main is None and not inherits and not job.settings.program else None
    return _described(job, packed, state, main, logging), packed, tracker


def _given(call: PackedCall) -> _Call:
    """Return what another process has packed; this host has its own variables."""
    state = replace(call.state, pid=os.getpid(), environment=dict(os.environ), tracker=False)
    return replace(call, state=state), None, None


def packed_for_hosts(call: Call) -> tuple[PackedCall, Packed]:
    """Pack the call for launchers of other hosts; the caller closes what holds its file.

    Raises TypeError for what cannot be sent to other hosts.
    """
    main = None if call.settings.program else main_source()
    state, _ = launcher_state.capture()
    packed = pack(call.fn, call.args, call.kwargs, linux.memory_file, for_hosts=True)
    logging = _logging() if main is None and not call.settings.program else None
    return _described(call, packed, state, main, logging), packed


def _described(
    call: Call,
    packed: Packed | None,
    state: LauncherState,
    main: MainSource | None,
    logging: LoggingSetup | None,
) -> PackedCall:
    image = packed.image if packed is not None else Image(None, 0)
    if image.descriptor >= 0:
        linux.seal(image.descriptor)
    module = str(getattr(call.fn, "__module__", ""))
    touches = packed is not None and packed.touches_device
    return PackedCall(
        call.name, module, image.data, image.size, touches, state, main, logging, image.descriptor
    )


def _logging() -> LoggingSetup | None:
    from xmp._processes.messages import logging_setup  # a script has its own

    return logging_setup.capture()


def _method(job: Job, unsafe: bool) -> str:
    if job.settings.start_method == "fork":
        method = "inherit"
    else:
        method = "fork" if job.settings.start_method == "forkserver" and not unsafe else "exec"
    log.debug(
        "start_method=%r: %s%s", job.settings.start_method, _HOW[method], _KNOWN if unsafe else ""
    )
    return method
