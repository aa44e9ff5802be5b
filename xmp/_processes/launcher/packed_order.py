"""What a launch sends its supervisor: the packed call, the order, and the descriptors beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from xmp import _log
from xmp._payload import Packed, pack
from xmp._payload.script import main_source
from xmp._processes.messages import launcher_state
from xmp._processes.messages.connection import Connection
from xmp._processes.messages.launch import StartLaunch
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.system import linux
from xmp._types import Output

from .job import Job
from .start_methods import StartMethod

__all__ = ["PackedOrder"]

_HOW = {
    "inherit": "replicas are forked from this process",
    "fork": "replicas are forked from the supervisor",
    "exec": "replicas are fresh interpreters",
}
_KNOWN = ": in an earlier launch a fork was not safe after the function was loaded"


class PackedOrder:
    """The order of one launch; ``at_end`` takes what closes its descriptors.

    Raises TypeError for a call that cannot be packed.
    """

    def __init__(
        self,
        job: Job,
        start_method: StartMethod,
        phases: str,
        output: Output | None,
        at_end: Callable[[Callable[[], None]], Any],
    ) -> None:
        inherits = job.method == "fork"
        self.main = None if inherits else main_source()
        state, self._tracker = launcher_state.capture()
        self._packed = None if inherits else _pack(job, at_end)
        self._leases = tuple(job.leases.values())
        known = start_method.is_unsafe(job.identity, self.main)
        forkable = job.method == "forkserver" and not known
        method = "inherit" if inherits else "fork" if forkable else "exec"
        _log.debug("start_method=%r: %s%s", job.method, _HOW[method], _KNOWN if known else "")
        packed, plan = self._packed, job.plan
        self.order = LaunchOrder(
            host=job.host,
            world_size=job.world_size,
            runtime=plan.runtime,
            framework=plan.framework,
            state=state,
            main=self.main,
            rules=start_method.key.rules,
            method=method,
            image_data=packed.image.data if packed else None,
            image_size=packed.image.size if packed else 0,
            touches_device=packed.touches_device if packed else False,
            leases=tuple(job.leases),
            grace=job.grace,
            called=job.called or time.monotonic_ns(),
            seed=job.seed,
            restart_count=job.restart_count,
            limits=job.limits,
            events=job.telling is not None,
            output=job.output or output,
            phases=phases,
        )

    def use_fresh_interpreters(self) -> None:
        """Replicas must not be forked: each loads the call itself."""
        self.order = replace(self.order, method="exec")

    def send(self, connection: Connection, streams: Sequence[int]) -> None:
        """Send it to a new supervisor, which gets these standard streams."""
        packed = self._packed
        descriptors = [packed.image.descriptor] if packed and self.order.has_file else []
        descriptors += [self._tracker] if self._tracker is not None else []
        descriptors += self._leases
        descriptors += packed.descriptors if packed else []
        connection.send(StartLaunch(self.order), [*streams, *descriptors])

    def taken_over(self) -> None:
        """All replicas exist: what was sent belongs to them."""
        if self._packed is not None:
            self._packed.sent()


def _pack(job: Job, at_end: Callable[[Callable[[], None]], Any]) -> Packed:
    packed = pack(job.fn, job.args, job.kwargs, linux.memory_file)
    if packed.image.data is None:
        linux.seal(packed.image.descriptor)
    at_end(packed.close)
    return packed
