"""A launch's link to its supervisor: the process that forks it, the connection, the lifeline.

When the launcher closes the lifeline, or ends, the supervisor ends the replicas and itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp._os import log
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.fork_server import ForkSupervisor
from xmp._processes.messages.launch import StartLaunch
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.system import processes, stdio
from xmp._processes.system.descriptors import Held
from xmp._processes.terminal.console import in_notebook
from xmp._words.errors import StartError
from xmp._words.types import Output

from .deadlines import Deadlines
from .fork_server_handle import ForkServerHandle
from .job import Job
from .link import OverConnection
from .packed_order import make_order
from .server_process import END_WAIT
from .start_methods import StartMethod
from .template_key import TemplateKey
from .template_pool import templates
from .warm_template import WarmTemplate

if TYPE_CHECKING:
    from xmp._processes.terminal.notebook_output import CellOutput

__all__ = ["SupervisorLink"]

_FIRST_WAIT = 0.25


class SupervisorLink(OverConnection):
    """Starts the supervisor, if need be again, and ends it.

    ``at_end`` takes what must be called when the launch ends.
    """

    order: LaunchOrder
    index = 0

    def __init__(
        self, job: Job, deadlines: Deadlines, at_end: Callable[[Callable[[], None]], Any]
    ) -> None:
        self.start_method = StartMethod(TemplateKey.of(job.plan), at_end)
        self.supervisor = 0
        """Its pid, once the replicas exist."""
        self._job = job
        self._deadlines = deadlines
        self._at_end = at_end
        self._template: WarmTemplate | None = None
        self._lifeline = Held()
        self._in_notebook = in_notebook()
        self._cell_output: CellOutput | None = None

    @property
    def open(self) -> bool:
        """Whether there may be a supervisor."""
        return self._lifeline.number >= 0

    def prepare(self) -> None:
        """Pack the call and write the order; TypeError for what cannot be packed."""
        # What the program has written must come before what its replicas write, and only once.
        stdio.flush()
        # Forked replicas join their framework at once: only "all" or none report their phases.
        relay = self._job.relay
        if self._job.reports_phases or (relay and relay.phases):
            phases = "all"
        else:
            phases = "fresh" if self._deadlines.progress.possible else ""
        output, cell = (Output(), os.urandom(16)) if self._in_notebook else (None, b"")
        self.order, self._packed, self._descriptors = make_order(
            self._job, self.start_method, phases, output, cell, self._at_end
        )

    # --- starting ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Find a fork server, have it fork the supervisor, and send the order."""
        for attempt in (1, 2):
            try:
                self._send_order(self._fork_server())
                return
            except Closed:
                # Killed while it was idle: the next one is new.
                self.drop()
                said = templates.discard(self._template) if self._template else ""
                if attempt == 2:
                    raise StartError(
                        f"the template does not answer: {said}", code="XMP-S04"
                    ) from None

    def doing(self) -> str:
        """Return what a launch that has no replicas yet waits for."""
        server = self._server
        if self._job.settings.start_method != "fork" and server.alive and not server.wait_ready(0):
            return f"process {server.pid} is still importing what the launcher has imported"
        return "the supervisor is loading the function and its arguments"

    def replace_stopped(self) -> None:
        """Use another fork server if this one is stopped: it would never answer."""
        server = self._server
        if not processes.is_stopped(server.pid):
            return
        log.warning("process %d is stopped and does not answer: killed", server.pid)
        self.drop()
        if self._template is None or server is self._template:
            templates.discard(server)
        else:
            self._template.forget_holder()
        self.begin()

    def begin_with_fresh_interpreters(self, culprits: list[str]) -> None:
        """Forking is not safe after the call was loaded: start a supervisor that loads nothing."""
        self.start_method.remember_unsafe(self._job.identity, self._job.name, culprits)
        self.order = replace(self.order, method="exec")
        self.end()  # first: it may hold what the replicas need
        assert self._template is not None  # only its supervisors load anything
        try:
            self._send_order(self._template)
        except Closed:
            self.drop()  # it was killed meanwhile
            self.begin()

    def _fork_server(self) -> ForkServerHandle:
        job, start_method = self._job, self.start_method
        if job.settings.start_method == "fork":
            call = (job.fn, tuple(job.args), dict(job.kwargs))
            return start_method.forked_keeper(call, job.leases.values())
        if job.settings.start_method == "spawn":
            return start_method.keeper()
        self._template = template = start_method.warm()
        main = self.order.call.main
        if self.order.method == "fork" and main is not None:
            holder = start_method.holder(template, main, self.order.call.state, self._deadlines)
            if holder is not None:
                return holder
            self.order = replace(self.order, method="exec")
        return template

    def _send_order(self, server: ForkServerHandle) -> None:
        self._token, self._connection, lifeline = server.request(ForkSupervisor)
        self._lifeline = Held(lifeline)
        self._server = server
        streams = self._streams()
        try:
            self._connection.send(StartLaunch(self.order), [*streams, *self._descriptors])
        finally:
            for descriptor in streams:
                os.close(descriptor)

    def _streams(self) -> list[int]:
        """Return what the supervisor gets for standard input, output and error."""
        alone = self._job.settings.program and self._job.plan.world_size == 1
        streams = stdio.standard_streams(reads=alone)
        if self._in_notebook:
            # The only thread of xmp that a launcher ever has.
            from xmp._processes.terminal.notebook_output import CellOutput

            self._end_cell_output()
            self._cell_output = CellOutput(self.order.call.cell)
            for number, end in enumerate(self._cell_output.ends(), 1):
                os.close(streams[number])
                streams[number] = end
        return streams

    def has_started(self, supervisor: int) -> None:
        """Note that all replicas exist: what was sent belongs to them."""
        self.supervisor = supervisor
        if self._packed is not None:
            self._packed.sent()

    def is_stopped(self) -> bool:
        return processes.is_stopped(self.supervisor)

    # --- ending --------------------------------------------------------------------------------

    def kill(self) -> None:
        """End a supervisor that does not answer; its replicas end with it."""
        pid = self.supervisor or self._server.pid_of(self._token) or 0
        log.warning("supervisor %d does not answer: killed", pid)
        processes.kill(pid)

    def end(self) -> None:
        """Close our ends and wait until nothing of the supervisor is left."""
        if self.open:
            pid = self._server.pid_of(self._token) or self.supervisor
            self.drop()
            if pid and self._server.wait_end(pid, _FIRST_WAIT) is None:
                # It is slow, or stopped and so does not notice the end, or its parent died.
                if processes.is_stopped(pid):
                    log.warning("supervisor %d is stopped and does not answer: killed", pid)
                    processes.kill(pid)  # its replicas end with it
                if self._server.wait_end(pid) is None:
                    processes.wait_gone(pid, END_WAIT)
        self._end_cell_output()

    def _end_cell_output(self) -> None:
        if self._cell_output is not None:
            self._cell_output.finish()
            self._cell_output = None

    def drop(self) -> None:
        """Close our ends."""
        if self.open:
            self._connection.close()
            self._lifeline.close()

    def how_it_ended(self) -> str:
        """Return how a supervisor ended that sent no last message."""
        if failure := self._server.fork_failure(self._token):
            return failure
        pid = self._server.pid_of(self._token)
        status = self._server.wait_end(pid) if pid else None
        if status is None:
            return (
                f"ended early: the process that forked it has ended as well. {self._server.log()}"
            )
        code = os.waitstatus_to_exitcode(status)
        by_signal = f"killed by {processes.signal_name(-code)}"
        return f"ended early: {by_signal if code < 0 else f'exit code {code}'}"
