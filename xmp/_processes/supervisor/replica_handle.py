"""The supervisor's handle of one replica: its plan, its descriptors, and its end."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from xmp._os import proc
from xmp._processes.messages.connection import pair
from xmp._processes.messages.order import HUNG_UP, MALFORMED, Failure
from xmp._processes.messages.thread_replicas import plans_of
from xmp._processes.messages.timeline import Timeline
from xmp._processes.messages.untrusted import UntrustedConnection
from xmp._processes.output.streams import Outlets, Source, last_lines
from xmp._processes.replica.role import ChildEnds, DescriptorLayout
from xmp._processes.system import linux, processes
from xmp._processes.system.descriptors import move_above
from xmp._processes.system.stack_dump import DUMP_SIGNAL, STACKS, StackFile
from xmp._words.types import ReplicaPlan

__all__ = ["ReplicaHandle", "recorded"]

_NAME = "TORCHELASTIC_ERROR_FILE"
_LIMIT = 64 * 1024  # bytes; a longer file is no traceback
_FATAL = "Fatal Python error: "


def recorded(plan: ReplicaPlan) -> tuple[str, str]:
    """Return the message and the traceback; empty if the file is missing or has another form."""
    path = dict(plan.set).get(_NAME)
    if not path or not os.path.lexists(path):
        return "", ""
    import json  # here, since a module that a template has loaded costs every replica pages

    try:
        return _of(json.loads(_text(path)))
    except (OSError, ValueError, RecursionError):
        return "", ""


def _text(path: str) -> bytes:
    """Return the file's text. Raise OSError if it is no regular file, or is too long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LIMIT:
            raise OSError("no file of torch's")
        return os.read(descriptor, _LIMIT)
    finally:
        os.close(descriptor)


def _of(data: Any) -> tuple[str, str]:
    """Return message and traceback; a handler of the program's own may write less, or more."""
    message = data.get("message") if isinstance(data, dict) else None
    trace = None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        trace = extra.get("py_callstack") if isinstance(extra, dict) else None
        message = message.get("message")
    return message if isinstance(message, str) else "", trace if isinstance(trace, str) else ""


@dataclass(eq=False)
class ReplicaHandle:
    """One process of the launch, which is one replica or several as threads."""

    plan: ReplicaPlan
    connection: UntrustedConnection
    sources: list[Source]
    """Standard error, and standard output if it is captured separately."""
    stacks: StackFile
    pid: int = -1
    forked: int = 0
    birth: int = -1
    """The descriptor that ends a fork which hangs before its first line; see ``Birth``."""
    ended: bool = False
    hung_up: bool = False
    """Whether the replica has closed its connection and lives on."""
    returned: bool = False
    reports: int = 0
    """The number of its messages that are reported to the launcher."""
    failure: Failure | None = None
    timeline: Timeline = field(default_factory=Timeline)

    @classmethod
    def prepare(
        cls, plan: ReplicaPlan, layout: DescriptorLayout, outlets: Outlets
    ) -> tuple[ReplicaHandle, ChildEnds]:
        """Make the parent's handle and the child's ends.

        All descriptors are above the layout, so that the child closes them by one system call.
        """
        ours, theirs = pair()
        above = layout.above
        sources, streams = outlets.open(plan, above)
        stacks = move_above(linux.memory_file(f"{STACKS}{plan.rank}"), above)
        connection = UntrustedConnection(move_above(ours.detach(), above))
        replica = cls(plan, connection, sources, StackFile(stacks))
        return replica, ChildEnds(theirs.moved(above).detach(), stacks, tuple(streams))

    @property
    def rank(self) -> int:
        return self.plan.rank

    @property
    def ranks(self) -> list[int]:
        """The ranks of all replicas of the process."""
        return [plan.rank for plan in plans_of(self.plan)]

    @property
    def local_ranks(self) -> list[int]:
        """The local ranks of all replicas of the process."""
        return [plan.local_rank for plan in plans_of(self.plan)]

    def rest(self) -> None:
        """Forget how the last call of the gang has ended, and what was written in it."""
        self.returned, self.reports, self.failure = False, 0, None
        self.timeline = Timeline()
        for source in self.sources:
            source.forget()

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to the process; with ``group``, once to all of its process group.

        A fork in its first lines leads no group yet, and the function may have left its own.
        """
        if self.ended:
            return
        with suppress(ProcessLookupError, PermissionError):  # it ended a moment ago
            leads = group and os.getpgid(self.pid) == self.pid
            if not leads:
                os.kill(self.pid, number)
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def interrupt(self) -> None:
        """Send SIGINT, and SIGTERM too if the replica ignores SIGINT.

        Its children get the SIGINT as well, as from a terminal: a replica that waits for one in
        ``join()`` would wait until ``grace`` is over.

        If it has itself chosen to ignore SIGINT, it gets SIGTERM only if it handles that. It has
        not chosen so if the launcher ignores SIGINT: then this process ignores it as well.
        """
        self.signal(signal.SIGINT, group=True)
        known = proc.status(self.pid)
        ignores = proc.has_signal(known, "SigIgn", signal.SIGINT)
        inherited = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        if ignores and (inherited or proc.has_signal(known, "SigCgt", signal.SIGTERM)):
            self.signal(signal.SIGTERM)

    def fail(self, failing_rank: int = -1, **known: Any) -> Failure:
        """Note the failure of the replica, or of its thread replica; return the first one noted.

        ``failing_rank`` is the rank of the thread replica, -1 for the process's first replica.
        """
        if self.failure is None:
            plans = plans_of(self.plan)
            plan = next((each for each in plans if each.rank == failing_rank), self.plan)
            self.failure = Failure(
                plan.rank, plan.local_rank, self.pid, device=plan.device, **known
            )
        return self.failure

    def hang_up(self) -> None:
        """Note that the connection is closed.

        The replica itself has closed it (``hung_up``), unless it has reported its end, is ending,
        or has become another program.
        """
        known = self.returned or self.failure is not None
        found = proc.process(self.pid)  # exec closes the connection, and changes the name
        own = found is None or found.name.startswith("xmp-")
        self.hung_up = own and not known and not processes.is_ending(self.pid)

    def note_end(self, at: int, status: int, why: str = "") -> None:
        self.ended = True
        self._close_birth()
        code = os.waitstatus_to_exitcode(status)
        unreported = self.failure is None and not self.returned
        if code < 0 and self.failure is None:
            name = processes.signal_name(-code)
            self.fail(kind="signal", at=at, signal_name=name, exit_code=code)
        elif code >= 0 and (code or self.failure is not None):
            self.fail(kind="exit", at=at).exit_code = code
        elif self.failure is not None and self.failure.kind == MALFORMED:
            self.failure.signal_name, self.failure.exit_code = processes.signal_name(-code), code
        if self.failure is not None and unreported:
            self.failure.why = why
            self.failure.hung_up = self.hung_up or code == HUNG_UP
        # A signal after it has reported its failure comes from xmp.

    def request_stacks(self) -> None:
        """Make the replica write the stacks of all threads to its stack file."""
        self.signal(DUMP_SIGNAL)

    def add_last_output(self, failure: Failure, answered: str) -> None:
        """Add to ``failure`` the record of ``@record``, the last lines of the streams, and stacks.

        faulthandler writes the stacks of a native crash after those that the replica had
        ``answered`` on request, or into them. When the interpreter itself gives up
        (``Py_FatalError``), they are on standard error.
        """
        failure.recorded = recorded(self.plan)
        # The text before the mark may have been requested by another process.
        _, mark, text = self.stacks.unrequested().partition(_FATAL)
        failure.stacks = mark + text
        failure.stderr, *captured = [source.tail() for source in self.sources]
        failure.stdout = "".join(captured)
        if not mark and failure.signal_name == "SIGABRT":
            written, mark, text = self.sources[0].kept().rpartition(_FATAL)
            if mark:
                failure.stacks, failure.stderr = mark + text, last_lines(written)
        failure.stacks = failure.stacks or answered

    def close(self) -> None:
        """Close the parent's descriptors."""
        self._close_birth()
        self.connection.close()
        for source in self.sources:
            source.close()
        self.stacks.close()

    def _close_birth(self) -> None:
        if self.birth >= 0:
            os.close(self.birth)
            self.birth = -1
