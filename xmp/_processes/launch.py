"""The launcher's side of one launch: it starts a supervisor, takes in what it tells, unwinds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from xmp._errors import StartError, XmpError
from xmp._payload import Image, Packed, load_image, pack
from xmp._payload.script import main_source

from . import kernel, report, state
from .account import StartAccount, Timeline
from .job import Job, ReplicaProcess
from .needs import Needs
from .order import Failure, Order
from .parents import Parents, templates
from .terminal import say, signals_of_the_user
from .warm import Template
from .wire import Closed, pair

__all__ = ["Launch", "live"]

_END_WAIT = 5.0
_ANSWER_WAIT = 5.0
_BREATH = 0.25
_ORDERLY: dict[type, str] = {KeyboardInterrupt: "interrupt", SystemExit: "stop"}
live: set[Launch] = set()
"""The launches of this process that have not ended; also those whose handle nobody keeps."""


class Launch:
    """One launch, from the packed call to the last report."""

    def __init__(self, job: Job, release: Callable[[], None] = lambda: None) -> None:
        self.job = job
        self.processes: dict[int, ReplicaProcess] = {}
        self.results: dict[int, Any] = {}
        self.timeline: dict[int, Timeline] = {}
        self.failures: list[Failure] = []
        self.stacks: dict[int, str] = {}
        self.finished = False
        self._broken: BaseException | None = None
        self._imported: list[str] = []
        self._stacks_answer: dict[int, str] | None = None
        self._undo = ExitStack()
        self._undo.callback(release)
        self._lock = threading.RLock()
        self._template: Template | None = None
        self._parents = Parents(Needs.of(job.plan), self._undo.callback)

    # --- starting ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start supervisor and replicas; returns when every replica has been made.

        Raises TypeError for what cannot be packed and StartError for what does not come up;
        nothing is left behind then.
        """
        for other in list(live):
            other.wait(0)  # of those that nobody joins: take in that they have ended
        try:
            self._main = main_source() if self.job.method != "fork" else None
            self._state, tracker = state.capture()
            self._packed = self._pack()
            self._tracker = tracker
            self._order = self._write_order()
            self._begin()
            self._wait_for_start()
        except BaseException:
            self._abandon()
            raise
        if self._broken is not None:
            raise self._broken
        live.add(self)

    def _wait_for_start(self) -> None:
        def there() -> bool:
            return bool(self.processes) or self.finished

        try:
            while not self._pump_until(there, _ANSWER_WAIT):
                if kernel.is_stopped(self._parent_used.pid):
                    self._replace_stopped(self._parent_used)
        except KeyboardInterrupt:
            # While it loads, a supervisor hears nothing: the lifeline ends it. But what has just
            # reached the user's function shall end in order.
            if self._lifeline < 0 or not self._pump_until(there, _BREATH):
                raise
            self.ask("interrupt")
            self.wait(None)
            raise

    def _replace_stopped(self, parent: Template) -> None:
        """A process that somebody stopped would keep us waiting for ever."""
        say(f"xmp: process {parent.pid} is stopped and does not answer: killed")
        self._wire.close()
        os.close(self._lifeline)
        self._lifeline = -1
        if self._template is not None and parent is not self._template:
            self._template.forget_holder()
        else:
            templates.discard(parent)
        self._begin()

    def _pack(self) -> Packed | None:
        if self.job.method == "fork":
            return None
        packed = pack(self.job.fn, self.job.args, self.job.kwargs, kernel.memory_file)
        if packed.image.data is None:
            kernel.seal(packed.image.descriptor)
        self._undo.callback(packed.close)
        return packed

    def _write_order(self) -> Order:
        job, packed = self.job, self._packed
        known = self._parents.is_unsafe(job.identity, self._main)
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
            rules=self._parents.needs.rules,
            method=method,
            image_data=packed.image.data if packed else None,
            image_size=packed.image.size if packed else 0,
            touches_device=packed.touches_device if packed else False,
            leases=tuple(job.leases),
            grace=job.grace,
            called=job.called or time.monotonic_ns(),
            seed=job.seed,
        )

    def _begin(self) -> None:
        """Find a process that forks the supervisor, and send the order."""
        for attempt in (1, 2):
            try:
                self._send_order(self._parent())
                return
            except Closed:
                # Killed while it was idle: the next one is new.
                said = templates.discard(self._template) if self._template else ""
                if attempt == 2:
                    raise StartError(f"the template does not answer: {said}") from None

    def _parent(self) -> Template:
        job, parents = self.job, self._parents
        if job.method == "fork":
            return parents.forked_keeper((job.fn, tuple(job.args), dict(job.kwargs)))
        if job.method == "spawn":
            return parents.keeper()
        self._template = template = parents.warm()
        if self._order.method == "fork" and self._main is not None:
            holder = parents.holder(template, self._main, self._state)
            if holder is not None:
                return holder
            self._order = replace(self._order, method="exec")
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
        self._wire, self._lifeline, self._token, self._parent_used = ours, lifeline, token, parent
        streams = state.standard_streams()
        packed = self._packed
        descriptors = [*streams]
        descriptors += [packed.image.descriptor] if packed and self._order.has_file else []
        descriptors += [self._tracker] if self._tracker is not None else []
        descriptors += self.job.leases.values()
        descriptors += packed.descriptors if packed else []
        try:
            ours.send(self._order, descriptors)
        finally:
            for descriptor in streams:
                os.close(descriptor)

    # --- hearing -------------------------------------------------------------------------------

    def _pump_until(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Take in messages until ``done()``; False when the time is over."""
        end = None if timeout is None else time.monotonic() + timeout
        while not done():
            left = None if end is None else max(0.0, end - time.monotonic())
            if not self._wire.readable(left):
                return done()
            with self._lock:
                if not done() and self._wire.readable(0):
                    self._hear()
        return True

    def _hear(self) -> None:
        try:
            (name, *rest), descriptors = self._wire.recv()
        except Closed:
            self._lost()
            return
        getattr(self, f"_on_{name}")(descriptors, *rest)

    def _on_started(
        self,
        _: list[int],
        pid: int,
        pids: list[tuple[int, int, int]],
        received: int,
        loaded: int,
    ) -> None:
        self._supervisor = pid
        if self._packed is not None:
            self._packed.sent()
        for rank, replica, forked in pids:
            self.processes[rank] = ReplicaProcess(rank, replica)
            self.timeline[rank] = Timeline(self._order.called, received, loaded, forked)

    def _on_entered(self, _: list[int], rank: int, at: int) -> None:
        self.timeline[rank].entered = at

    def _on_returned(
        self,
        descriptors: list[int],
        rank: int,
        data: bytes | None,
        size: int,
        timeline: Timeline,
        imported: list[str],
    ) -> None:
        self.timeline[rank] = timeline.completed(self.timeline[rank])
        self._imported += imported
        if data is None and not descriptors:
            self.results[rank] = None
            return
        image = Image(data, size, descriptors[0] if descriptors else -1)
        try:
            self.results[rank] = load_image(image)
        except Exception as error:
            text = f"rank {rank}'s result cannot be loaded here: {type(error).__name__}: {error}"
            self._broken = self._broken or _with_cause(XmpError(text), error)
        finally:
            image.close()

    def account(self) -> StartAccount:
        """Where the time of the start went."""
        return StartAccount(self.timeline, self._parents.imports())

    def _on_ended(self, _: list[int], rank: int, code: int) -> None:
        self.processes[rank].exitcode = code

    def _on_stacks(self, _: list[int], stacks: dict[int, str]) -> None:
        self._stacks_answer = stacks

    def _on_unsafe(self, _: list[int], culprits: list[str]) -> None:
        self._parents.remember_unsafe(self.job.identity, self.job.name, culprits)
        self._order = replace(self._order, method="exec")
        self._end_supervisor()  # it may hold what the replicas need: first it goes
        assert self._template is not None  # only its supervisors load anything
        self._send_order(self._template)

    def _on_failed(self, _: list[int], text: str, words: str, pickled: bytes | None) -> None:
        cause = report.load_exception(pickled)
        error = StartError(f"loading the function and its arguments failed: {words}\n\n{text}")
        self._stop_short(_with_cause(error, cause))

    def _on_cannot(self, _: list[int], text: str) -> None:
        self._stop_short(StartError(text))

    def _on_done(
        self, _: list[int], verdict: Any, failures: list[Failure], stacks: dict[int, str]
    ) -> None:
        self.failures, self.stacks = failures, stacks
        self._finish()

    def _lost(self) -> None:
        """The supervisor is gone without a last word."""
        self._broken = self._broken or StartError(f"the supervisor ended early: {self._how()}")
        self._finish()

    def _how(self) -> str:
        pid = self._parent_used.pid_of(self._token)
        status = None if pid is None else self._parent_used.wait_end(pid, _END_WAIT)
        if status is None:
            return f"its parent is gone as well. {self._parent_used.log()}"
        code = os.waitstatus_to_exitcode(status)
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _stop_short(self, error: BaseException) -> None:
        self._broken = error
        self._finish()

    # --- ending --------------------------------------------------------------------------------

    def _end_supervisor(self) -> None:
        """Close our ends and wait until nothing of the supervisor is left."""
        pid = self._parent_used.pid_of(self._token, _END_WAIT)
        self._wire.close()
        os.close(self._lifeline)
        self._lifeline = -1
        if pid is not None:
            self._parent_used.wait_end(pid, _END_WAIT)

    def _finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        live.discard(self)
        if self._lifeline >= 0:
            self._end_supervisor()
        self._undo.close()
        if slow := self.account().slow():
            say(slow)
        self._parents.offer(self._imported)

    def _abandon(self) -> None:
        """Undo a start that did not succeed."""
        if getattr(self, "_lifeline", -1) >= 0:
            self._end_supervisor()
        self.finished = True
        self._undo.close()

    _lifeline = -1

    def drop(self) -> None:
        """In a forked child of the launcher: this launch is not ours."""
        self.finished = True
        self._broken = XmpError(f"only process {self._state.pid}, which launched it, can join it")
        if self._lifeline >= 0:
            self._wire.close()
            os.close(self._lifeline)
            self._lifeline = -1

    def ask(self, name: str, *rest: Any) -> None:
        """Ask the supervisor for something; nothing happens when it is gone."""
        if not self.finished:
            try:
                self._wire.send((name, *rest))
            except Closed:
                pass  # the next message that is read says why

    def wait(self, timeout: float | None) -> bool:
        """Take in messages until the end or for ``timeout`` seconds; Ctrl-C ends in order."""
        interrupt: BaseException | None = None
        patience = _ANSWER_WAIT + 2 * self.job.grace
        while True:
            try:
                with signals_of_the_user(self.ask):
                    if interrupt is None:
                        return self._pump_until(lambda: self.finished, timeout)
                    self.end_within(patience)
                    break
            except (KeyboardInterrupt, SystemExit) as asked:
                self.ask("kill" if interrupt else _ORDERLY[type(asked)])
                patience, interrupt = _ANSWER_WAIT if interrupt else patience, asked
        raise interrupt

    def end_within(self, seconds: float) -> None:
        """Wait for the end that was asked for; a supervisor that does not answer is killed."""
        if not self._pump_until(lambda: self.finished, seconds):
            say(f"xmp: supervisor {self._supervisor} does not answer: killed")
            os.kill(self._supervisor, signal.SIGKILL)  # its replicas go with it
            self._pump_until(lambda: self.finished, None)

    def live_stacks(self) -> dict[int, str]:
        """The stacks of all living replicas, now."""
        self._stacks_answer = None
        self.ask("stacks")
        self._pump_until(lambda: self._stacks_answer is not None or self.finished, 5.0)
        return self._stacks_answer or {}

    def outcome(self) -> None:
        """Raise what went wrong, if anything did."""
        if self.failures:
            host = os.uname().nodename
            job = self.job
            raise report.build(self.failures, job.world_size, host, self.results, self.stacks)
        if self._broken is not None:
            raise self._broken


def _with_cause(error: BaseException, cause: BaseException | None) -> BaseException:
    error.__cause__ = cause
    return error
