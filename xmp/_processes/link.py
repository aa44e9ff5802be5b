"""A launch's connection with its supervisor: an order goes out, closing it ends everything."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp._errors import StartError
from xmp._payload import Packed, pack
from xmp._payload.script import main_source
from xmp._types import Output

from . import family, kernel, state
from .job import Job
from .needs import Needs
from .order import Order
from .parents import Parents
from .patience import Patience
from .templates import templates
from .terminal import flush, in_notebook, say
from .warm import Template
from .wire import Closed, Wire, pair

if TYPE_CHECKING:
    from .notebook import Pump

__all__ = ["END_WAIT", "Link"]

END_WAIT = 5.0
_LOOK = 0.25


class Link:
    """Packs the call, finds a parent for the supervisor and holds the socket and the lifeline.

    ``own`` takes what is to be undone when the launch ends.
    """

    wire: Wire
    order: Order

    def __init__(
        self, job: Job, patience: Patience, own: Callable[[Callable[[], None]], Any]
    ) -> None:
        self.parents = Parents(Needs.of(job.plan), own)
        self.supervisor = 0
        """Its pid, once it has told."""
        self._job = job
        self._patience = patience
        self._own = own
        self._packed: Packed | None = None
        self._template: Template | None = None
        self._lifeline = -1
        self._in_notebook = in_notebook()
        self._pump: Pump | None = None

    @property
    def open(self) -> bool:
        """Whether there may be a supervisor."""
        return self._lifeline >= 0

    def prepare(self) -> None:
        """Pack the call and write the order; TypeError for what cannot be packed."""
        flush()
        self._main = main_source() if self._job.method != "fork" else None
        self._state, self._tracker = state.capture()
        self._packed = self._pack()
        self.order = self._write_order()

    def _pack(self) -> Packed | None:
        if self._job.method == "fork":
            return None
        packed = pack(self._job.fn, self._job.args, self._job.kwargs, kernel.memory_file)
        if packed.image.data is None:
            kernel.seal(packed.image.descriptor)
        self._own(packed.close)
        return packed

    def _write_order(self) -> Order:
        job, packed = self._job, self._packed
        known = self.parents.is_unsafe(job.identity, self._main)
        forkable = job.method == "forkserver" and not known
        method = "inherit" if job.method == "fork" else "fork" if forkable else "exec"
        plan = job.plan
        return Order(
            host=job.host,
            world_size=job.world_size,
            runtime=plan.runtime if plan else "",
            framework=plan.framework if plan else "",
            state=self._state,
            main=self._main,
            rules=self.parents.needs.rules,
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
            told=job.telling is not None,
            output=job.output or (Output() if self._in_notebook else None),
            phases=self._phases(),
        )

    def _phases(self) -> str:
        """A fork that nobody has asked about tells nothing: it is in its framework at once."""
        if self._job.telling is not None or self._job.progress:
            return "all"
        return "fresh" if self._patience.progress.possible else ""

    # --- the supervisor ------------------------------------------------------------------------

    def begin(self) -> None:
        """Find a process that forks the supervisor, and send the order."""
        for attempt in (1, 2):
            try:
                self._send_order(self._parent())
                return
            except Closed:
                # Killed while it was idle: the next one is new.
                self.drop()
                said = templates.discard(self._template) if self._template else ""
                if attempt == 2:
                    raise StartError(f"the template does not answer: {said}") from None

    def doing(self) -> str:
        """What a launch that has no replicas yet waits for."""
        parent = self._used
        if self._job.method != "fork" and parent.alive and not parent.wait_ready(0):
            return f"process {parent.pid} is still importing what the launcher has imported"
        return "the supervisor is loading the function and its arguments"

    def replace_stopped(self) -> None:
        """A parent that somebody stopped would keep us waiting for ever: begin with another."""
        parent = self._used
        if not family.is_stopped(parent.pid):
            return
        say(f"xmp: process {parent.pid} is stopped and does not answer: killed")
        self.drop()
        if self._template is not None and parent is not self._template:
            self._template.forget_holder()
        else:
            templates.discard(parent)
        self.begin()

    def begin_with_fresh_interpreters(self, culprits: list[str]) -> None:
        """Forking is not safe after the call was loaded: a new supervisor loads nothing."""
        self.parents.remember_unsafe(self._job.identity, self._job.name, culprits)
        self.order = replace(self.order, method="exec")
        self.end()  # it may hold what the replicas need: first it goes
        assert self._template is not None  # only its supervisors load anything
        try:
            self._send_order(self._template)
        except Closed:
            self.drop()  # it was killed meanwhile
            self.begin()

    def _parent(self) -> Template:
        job, parents = self._job, self.parents
        if job.method == "fork":
            call = (job.fn, tuple(job.args), dict(job.kwargs))
            return parents.forked_keeper(call, job.leases.values())
        if job.method == "spawn":
            return parents.keeper()
        self._template = template = parents.warm()
        if self.order.method == "fork" and self._main is not None:
            holder = parents.holder(template, self._main, self._state, self._patience)
            if holder is not None:
                return holder
            self.order = replace(self.order, method="exec")
        return template

    def _send_order(self, parent: Template) -> None:
        ours, theirs = pair()
        heard, lifeline = os.pipe()
        try:
            token = parent.request("fork", descriptors=[theirs.fileno(), heard])
        except Closed:
            ours.close()
            os.close(lifeline)
            raise
        finally:
            theirs.close()
            os.close(heard)
        self.wire, self._lifeline, self._token, self._used = ours, lifeline, token, parent
        streams = self._streams()
        try:
            ours.send(self.order, [*streams, *self._descriptors()])
        finally:
            for descriptor in streams:
                os.close(descriptor)

    def _streams(self) -> list[int]:
        """What the supervisor gets for standard input, output and error."""
        streams = state.standard_streams()
        if self._in_notebook:
            from .notebook import Pump  # the only thread that a launcher ever has of ours

            self._end_pump()
            self._pump = Pump()
            for end, descriptor in zip(self._pump.ends(), streams[1:], strict=True):
                os.dup2(end, descriptor, inheritable=False)
                os.close(end)
        return streams

    def _descriptors(self) -> list[int]:
        """What travels with the order, after the standard streams."""
        packed = self._packed
        descriptors = [packed.image.descriptor] if packed and self.order.has_file else []
        descriptors += [self._tracker] if self._tracker is not None else []
        descriptors += self._job.leases.values()
        return descriptors + (packed.descriptors if packed else [])

    def has_started(self, supervisor: int) -> None:
        """The replicas have been made: what was sent is theirs."""
        self.supervisor = supervisor
        if self._packed is not None:
            self._packed.sent()

    def is_stopped(self) -> bool:
        """Whether somebody stopped the supervisor."""
        return family.is_stopped(self.supervisor)

    # --- the end -------------------------------------------------------------------------------

    def kill(self) -> None:
        """End a supervisor that does not answer; its replicas go with it."""
        pid = self.supervisor or self._used.pid_of(self._token, END_WAIT) or 0
        say(f"xmp: supervisor {pid} does not answer: killed")
        family.kill(pid)

    def end(self) -> None:
        """Close our ends and wait until nothing of the supervisor is left."""
        if self.open:
            pid = self._used.pid_of(self._token, END_WAIT) or self.supervisor or None
            self.drop()
            if pid is not None and self._used.wait_end(pid, _LOOK) is None:
                self._insist(pid)
        self._end_pump()

    def _insist(self, pid: int) -> None:
        """It takes its time, or cannot notice that it shall end, or its parent was killed."""
        if family.is_stopped(pid):
            say(f"xmp: supervisor {pid} is stopped and does not answer: killed")
            family.kill(pid)  # its replicas go with it
        if self._used.wait_end(pid, END_WAIT) is None:
            family.wait_gone(pid, END_WAIT)

    def _end_pump(self) -> None:
        if self._pump is not None:
            self._pump.finish()
            self._pump = None

    def drop(self) -> None:
        """Close our ends."""
        if self.open:
            self.wire.close()
            os.close(self._lifeline)
            self._lifeline = -1

    def how_it_ended(self) -> str:
        """How the supervisor ended that said nothing."""
        pid = self._used.pid_of(self._token)
        status = None if pid is None else self._used.wait_end(pid, END_WAIT)
        if status is None:
            return f"its parent is gone as well. {self._used.log()}"
        code = os.waitstatus_to_exitcode(status)
        return f"killed by {family.signal_name(-code)}" if code < 0 else f"exit code {code}"
