"""What a launch sends its supervisor: the packed call, the order, and the descriptors beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xmp import _log
from xmp._payload import Packed, pack
from xmp._payload.script import main_source
from xmp._processes.messages import launcher_state
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.system import linux, seals
from xmp._types import Output

from .job import Job
from .start_methods import StartMethod

if TYPE_CHECKING:
    from xmp._processes.messages.logging_setup import LoggingSetup

__all__ = ["make_order"]

_HOW = {
    "inherit": "replicas are forked from this process",
    "fork": "replicas are forked from the supervisor",
    "exec": "replicas are fresh interpreters",
}
_KNOWN = ": in an earlier launch a fork was not safe after the function was loaded"


def make_order(
    job: Job,
    start_method: StartMethod,
    phases: str,
    output: Output | None,
    cell: bytes,
    at_end: Callable[[Callable[[], None]], Any],
) -> tuple[LaunchOrder, Packed | None, list[int]]:
    """The order of one launch, its packed call, and the descriptors beside it but for the streams.

    ``at_end`` takes what closes them. Raises TypeError for a call that cannot be packed.
    """
    plan, inherits = job.plan, job.method == "fork"
    main = None if inherits or job.program else main_source()
    state, tracker = launcher_state.capture()
    state = launcher_state.with_variables(state, dict(plan.env))
    packed = None if inherits else _sealed(job)
    if packed is not None:
        at_end(packed.close)
    order = LaunchOrder(
        host=job.host,
        world_size=plan.world_size,
        runtime=plan.runtime,
        framework=plan.framework,
        state=state,
        main=main,
        rules=start_method.key.rules,
        method=_method(job, start_method.is_unsafe(job.identity, main)),
        image_data=packed.image.data if packed else None,
        image_size=packed.image.size if packed else 0,
        touches_device=packed.touches_device if packed else False,
        leases=tuple(job.leases),
        grace=job.grace,
        called=job.called,
        seed=job.seed,
        restart_count=job.restart_count,
        limits=job.limits,
        events=job.telling is not None,
        output=job.output or output,
        cell=cell,
        logging=_logging() if main is None and not inherits and not job.program else None,
        phases=phases,
        env_by_rank=plan.env_by_rank,
        program=job.program,
        wants_results=job.wants_results,
        several_hosts=job.hosts is not None,
    )
    image = [packed.image.descriptor] if packed and order.has_file else []
    trackers = [] if tracker is None else [tracker]
    objects = packed.descriptors if packed else []
    return order, packed, [*image, *trackers, *job.leases.values(), *objects]


def _sealed(job: Job) -> Packed:
    """The packed call, which nothing can change any more."""
    packed = pack(job.fn, job.args, job.kwargs, linux.memory_file)
    if packed.image.data is None:
        seals.seal(packed.image.descriptor)
    return packed


def _logging() -> LoggingSetup | None:
    from xmp._processes.messages import logging_setup  # a script has its own

    return logging_setup.capture()


def _method(job: Job, unsafe: bool) -> str:
    if job.method == "fork":
        method = "inherit"
    else:
        method = "fork" if job.method == "forkserver" and not unsafe else "exec"
    _log.debug("start_method=%r: %s%s", job.method, _HOW[method], _KNOWN if unsafe else "")
    return method
