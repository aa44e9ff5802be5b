"""The loop of a process that forks supervisors: a template, a keeper or a script holder.

Besides requests it handles the ends of its children and the end of the launcher. While idle it
prepares a spare supervisor (``spare``) and modules for later launches (``preloading``).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import selectors
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from xmp._os import proc
from xmp._processes.messages import fork_server as messages
from xmp._processes.messages.catalog import Handlers
from xmp._processes.messages.connection import Closed, Connection
from xmp._processes.system import linux, processes
from xmp._processes.system.births import Births
from xmp._processes.system.descriptors import close_all, redirect_others_to_null
from xmp._processes.system.processes import drain, wake_on_ends

from .preloading import Candidates
from .spare import Become, Spare
from .template_imports import files_of, import_all, settle, variables_read

__all__ = ["SUPERVISOR", "ForkServer"]

SUPERVISOR = "xmp-supervisor"
_LOOK_SECONDS = 0.2
_TRIAL_DELAY = 0.05  # seconds: a launch that follows at once goes first
_SPARE_DELAY = 0.005  # seconds: modules may follow, which the spare should have imported


class Children:
    """The children of this process; ``fileno()`` is readable when one has ended."""

    def __init__(self, adopts: bool) -> None:
        self.own: set[int] = set()
        """Supervisors and script holders: each ends by itself."""
        self._adopts = adopts
        self._unkillable: set[int] = set()
        """Children that did not end after SIGKILL: they are not waited for again."""
        self.wakeup = wake_on_ends(3)

    def fileno(self) -> int:
        return self.wakeup[0]

    def reap(self) -> list[tuple[int, int]]:
        """Reap all children that have ended. Return the pid and the wait status of each."""
        drain(self.wakeup[0])
        ended = []
        try:
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                self._unkillable.discard(child[0])
                ended.append(child)
        except ChildProcessError:
            pass
        return ended

    def end_orphans(self, helpers: Iterable[int]) -> None:
        """End the processes that ended children have left, except ``helpers``.

        If this server adopts, supervisors are spared too: those of a script holder that was killed
        go on with their launches.
        """
        if self._adopts:
            strangers = set(processes.children(os.getpid())) - self.own
            self.own |= {pid for pid in strangers if proc.text(f"/proc/{pid}/comm") == SUPERVISOR}
        keep = {*self.own, *helpers, *self._unkillable}
        self._unkillable |= processes.end_descendants(keep)

    def leave(self) -> None:
        """Restore SIGCHLD's default and close the wake-up pipe, in a fresh child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        close_all(self.wakeup)


class ForkServer:
    """The loop, with one connection to the launcher and any number of children.

    ``one_launch`` is for a keeper that was forked from the launcher: it has no spare, adopts no
    supervisor, and closes the launcher's files once the supervisor has inherited them.
    """

    def __init__(
        self,
        connection: Connection,
        lifeline: int,
        launcher: int,
        idle: float | None,
        become: Become,
        *,
        one_launch: bool = False,
        grace: float = 0.5,
    ) -> None:
        self._connection = connection
        self._lifeline = lifeline
        self._idle = idle
        self._become = become
        self._one_launch = one_launch
        self._grace = grace
        self._children = Children(adopts=not one_launch)
        self._births = Births()
        self._spare = Spare()
        self._candidates = Candidates()
        self._requests = Handlers[[list[int]]]()
        self._requests.on(messages.ForkSupervisor, self._fork)
        self._requests.on(messages.StartScriptHolder, self._fork)
        self._requests.on(messages.ImportModules, lambda request, _: self._import(*request))
        self._requests.on(messages.TryModules, lambda request, _: self._candidates.add(*request))
        self._selector = selectors.DefaultSelector()
        self._open = True
        _signal.signal(_signal.SIGCONT, _signal.SIG_DFL)  # a handler is the program's, not ours
        linux.look_after(lifeline)
        # A child that a C library forks from the launcher holds copies of connection and lifeline:
        # they stay open when the launcher has ended.
        watch = linux.open_pidfd(launcher)
        self._launcher = -1 if watch is None else watch
        self._launcher_pid = launcher
        self._launches: set[int] = set()
        """The supervisors that it has forked and that run."""
        self._ends: float | None = None
        """When everything that still runs is killed; set once the launcher is dead."""
        for source in (connection.fileno(), self._children.fileno(), self._launcher):
            if source >= 0:
                self._selector.register(source, selectors.EVENT_READ)

    # --- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until no supervisor runs and the launcher has gone, or was silent for too long."""
        while self._open or self._children.own:
            birth, timeout = self._births.left(), self._timeout()
            wait = birth if timeout is None else timeout if birth is None else min(timeout, birth)
            events = self._selector.select(wait)
            self._births.end_overdue()
            # A closed connection alone may be a template that was replaced.
            if self._launcher < 0 and not self._open and processes.is_gone(self._launcher_pid):
                self._launcher_has_ended()
            if self._ends is not None and time.monotonic() >= self._ends:
                break  # a stopped supervisor does not notice that it should have ended
            if not events and birth is None and not self._use_idle_time():
                break
            for key, _ in events:
                self._handle(key.fd)
            self._flush()
            if not self._launches:  # the end of one would not be heard during the import: seconds
                self._import(self._candidates.take_harmless(), {})
            trial = self._candidates.trial
            if trial is not None and trial.left == 0:
                processes.kill(trial.pid)
        processes.end_descendants()

    def _timeout(self) -> float | None:
        if self._ends is not None:
            return max(0.0, self._ends - time.monotonic())
        if self._launcher < 0 and not self._open:
            return _LOOK_SECONDS
        if self._candidates.trial is not None:
            return self._candidates.trial.left
        if self._candidates.waiting:
            return _TRIAL_DELAY
        if self._is_time_for_spare():
            return _SPARE_DELAY
        return self._idle if not self._children.own else None

    def _use_idle_time(self) -> bool:
        """Begin a trial or fork the spare. Return False if no launch has come for too long."""
        with suppress(OSError):  # a limit was reached: a launch does without
            if self._candidates.waiting:
                trial = self._candidates.begin_trial(self._fork_child)
                self._selector.register(trial.pipe, selectors.EVENT_READ)
            elif self._is_time_for_spare():
                self._spare.fork(self._fork_child, self._become)
            else:
                return bool(self._children.own) or self._candidates.trial is not None
        return True

    def _is_time_for_spare(self) -> bool:
        busy = self._children.own or self._candidates.waiting or self._candidates.trial
        return self._spare.wanted and not busy and self._open

    def _handle(self, descriptor: int) -> None:
        if descriptor == self._children.fileno():
            self._reap()
        elif descriptor == self._connection.fileno():
            try:
                self._requests.handle(*self._connection.recv())
            except Closed:
                # The launcher may live on: it closes a template's connection when it replaces it,
                # also while launches still run.
                self._selector.unregister(descriptor)
                self._open = False
        elif descriptor == self._launcher:
            self._launcher_has_ended()
        elif self._candidates.trial is not None and not self._candidates.trial.hear():
            self._selector.unregister(descriptor)  # the trial's end is handled when it is reaped

    def _flush(self) -> None:
        try:
            if self._open:
                self._connection.flush()
        except Closed:
            pass  # the end of the connection is handled where it is read

    def _launcher_has_ended(self) -> None:
        """Stop serving: the children end by themselves, or are ended after the grace period."""
        self._open = False
        if self._ends is None:
            self._ends = time.monotonic() + self._grace
        for source in (self._connection.fileno(), self._launcher):
            if source >= 0 and source in self._selector.get_map():
                self._selector.unregister(source)

    # --- requests ------------------------------------------------------------------------------

    def _fork(self, request: messages.ForkRequest, descriptors: list[int]) -> None:
        pid = 0
        # A spare that hangs before its first line takes no request.
        if self._spare.pid not in self._births.pending() and isinstance(
            request, messages.ForkSupervisor
        ):
            pid = self._spare.give(request, descriptors)
        if not pid:
            try:
                pid = self._fork_child(descriptors[1])
            except OSError as error:  # a limit was reached
                self._connection.post(messages.ForkFailed(request.token, str(error)))
            else:
                if pid == 0:
                    self._become(request, descriptors)
        if pid:
            self._children.own.add(pid)
            if isinstance(request, messages.ForkSupervisor):
                self._launches.add(pid)
            self._connection.post(messages.Forked(pid, request.token))
        close_all(descriptors)
        if self._one_launch:
            redirect_others_to_null(self._descriptors())

    def _fork_child(self, *lifelines: int) -> int:
        """Fork as ``os.fork``; the child has closed all descriptors of the server."""
        linux.arm(self._lifeline)  # a library's at-fork hook may hang in this process, too
        pid = -1
        try:
            pid = self._births.fork(lifelines)
        finally:
            if pid:
                linux.look_after(self._lifeline)
        if pid == 0:
            self._leave()
        return pid

    def _import(self, names: list[str], written: Mapping[str, str]) -> None:
        if not names:
            return
        self._spare.replace()
        os.environ.update(written)
        linux.arm(self._lifeline)  # this process reads nothing while it imports
        import_all(names)
        settle()
        linux.look_after(self._lifeline)
        read = variables_read.names()
        self._connection.post(messages.ModulesImported(files_of(names), dict(os.environ), read))
        self._flush()

    # --- children ------------------------------------------------------------------------------

    def _descriptors(self) -> list[int]:
        """Return the server's own descriptors, except those of spare and trial."""
        epoll = getattr(self._selector, "fileno", lambda: self._lifeline)()
        own = (self._connection.fileno(), self._lifeline, self._launcher, epoll)
        births = self._births.descriptors()
        return [number for number in (*own, *births, *self._children.wakeup) if number >= 0]

    def _leave(self) -> None:
        """Close, in a fresh child, all descriptors of the server."""
        self._children.leave()
        self._selector.close()
        self._connection.close()
        for descriptor in (self._lifeline, self._launcher, *self._births.descriptors()):
            if descriptor >= 0:
                os.close(descriptor)
        if self._candidates.trial is not None:
            os.close(self._candidates.trial.pipe)
        self._spare.close()

    def _reap(self) -> None:
        """Report the supervisors that have ended, once no process of them is left."""
        supervisors, trial = [], self._candidates.trial
        for pid, status in self._children.reap():
            if pid in self._children.own:
                self._children.own.discard(pid)
                self._launches.discard(pid)
                supervisors.append(messages.ProcessEnded(pid, status))
            elif trial is not None and pid == trial.pid:
                if trial.pipe in self._selector.get_map():
                    self._selector.unregister(trial.pipe)
                self._candidates.trial_ended()
            else:
                self._spare.has_ended(pid)
        if supervisors and not self._one_launch:
            self._spare.launch_has_ended()
        trial = self._candidates.trial
        self._children.end_orphans({self._spare.pid, trial.pid if trial else 0})
        for report in supervisors:
            self._connection.post(report)
