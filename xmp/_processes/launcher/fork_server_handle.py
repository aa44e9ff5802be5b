"""The launcher's handle on a fork server: a template, a script holder or a keeper.

A handle has a connection for requests and reports, and a lifeline: when this process ends, however
it ends, the kernel closes both.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from xmp._os import log as _log
from xmp._os import marks
from xmp._processes.messages import fork_server, launcher_state
from xmp._processes.messages.catalog import Handlers, Message
from xmp._processes.messages.connection import Closed, Connection, pair
from xmp._processes.system import interpreter, launcher_mark, linux, processes, thread_pools
from xmp._processes.system.births import Birth
from xmp._processes.system.descriptors import Held, redirect_to_null
from xmp._processes.system.launch_conditions import limits
from xmp._words.errors import StartError

from .imported import Imported
from .server_process import END_WAIT, FreshInterpreter, search_path, wait_for_fork
from .shared_reader import SharedReader
from .template_key import TemplateKey
from .written_variables import of_imports

__all__ = ["ForkServerHandle", "drop_all"]

_IDLE_SECONDS = 600.0
_LOOK_SECONDS = 0.5
_handles: weakref.WeakSet[ForkServerHandle] = weakref.WeakSet()
H = TypeVar("H", bound="ForkServerHandle")


class ForkServerHandle:
    """A handle; see the module. Safe to use from several threads."""

    def __init__(self, connection: Connection, lifeline: int, pid: int = 0) -> None:
        self.pid = pid
        self.refusal: fork_server.ForkUnsafe | fork_server.ImportFailed | None = None
        """Why a script holder has ended."""
        self.imported = Imported()
        self.asked: set[str] = set()
        """The modules that it has been asked to import or to try."""
        self._connection = connection.hold()
        self._lifeline = Held(lifeline)
        self._birth = Held()
        """What ends a fork of ours that hangs before its first line; see ``Birth``."""
        self._process: FreshInterpreter | None = None
        self._ended: dict[int, int] = {}
        self._forked: dict[int, int] = {}
        self._fork_failures: dict[int, str] = {}
        self._token = 0
        self._ready = self._dead = False
        self._began = time.monotonic()
        self._sending = threading.RLock()
        self._reader = SharedReader(self._readable, self._read)
        self._reports = self._handlers()
        _handles.add(self)

    # --- starting and ending -------------------------------------------------------------------

    @classmethod
    def start(cls: type[H], modules: Sequence[str], key: TemplateKey, title: str) -> H:
        """Start it as a fresh interpreter; does not wait until that is ready."""
        ours, theirs = pair()
        watched, lifeline = os.pipe()
        self = cls(ours, lifeline)
        environment = key.environment()
        environment |= {**thread_pools.one_thread_environment(), **dict(key.rules.quiet)}
        environment[marks.VARIABLE] = str(marks.mine())
        # coverage.py must start where the working folder and the paths are the launcher's.
        environment.pop("COVERAGE_PROCESS_START", None)
        environment.pop(interpreter.TRACING, None)
        linux.kill_on_hang_up(watched)
        try:
            self._process = FreshInterpreter((theirs.fileno(), watched), environment)
            # Its first line arms the lifeline too, but an interpreter may hang before that (in
            # sitecustomize, in a file system). What remains is an interpreter that hangs there
            # and whose launcher is killed between clone(2) and this line: 1 ms.
            linux.set_owner(watched, -self._process.pid)
        except OSError as error:
            self.drop()
            text = f"cannot start {interpreter.executable()}: {error}\n{limits()}"
            raise StartError(text) from None
        finally:
            theirs.close()
            os.close(watched)
        self.pid = self._process.pid
        launcher_mark.leave_on_child(self.pid, environment[marks.VARIABLE])
        self.asked.update(modules)
        self.imported.environments.append(environment)
        idle = None if "ipykernel" in sys.modules else _IDLE_SECONDS
        try:
            paths = os.environ.get("PYTHONPATH", ""), environment.get("PYTHONPATH", "")
            path = launcher_state.with_path_of(search_path(), *paths)
            ours.send(fork_server.StartTemplate(path, list(modules), idle, title))
        except Closed:
            words = self.last_words()
            self.close()
            raise StartError(words, code="XMP-S04") from None
        return self

    @staticmethod
    def fork(call: Any, without: Iterable[int]) -> ForkServerHandle:
        """Fork this process into a keeper, for ``start_method="fork"``, without these open files.

        The supervisor that the keeper forks runs ``call``, which need not be packed.
        """
        from xmp._processes.system import finalisation
        from xmp._processes.template import template_main as template

        ours, theirs = pair()
        watched, lifeline = os.pipe()
        mark = str(marks.mine())
        finalisation.before_fork()
        birth = Birth()
        try:
            pid = linux.fork_quietly()
        except OSError as error:
            birth.over()
            for end in (watched, lifeline):
                os.close(end)
            for connection in (ours, theirs):
                connection.close()
            raise StartError(f"this process could not be forked: {error}\n{limits()}") from None
        if pid == 0:
            birth.over()
            launcher_mark.leave(mark)
            os.setsid()
            ours.close()
            os.close(lifeline)
            redirect_to_null(without)
            template.serve(theirs, watched, call)
        launcher_mark.leave_on_child(pid, mark)
        theirs.close()
        os.close(watched)
        handle = ForkServerHandle(ours, lifeline, pid)
        handle._birth = Held(birth.keep(pid))
        return handle

    @property
    def alive(self) -> bool:
        """Whether it still answers, as far as it has reported; it ends with its lifeline."""
        self._reader.take_in()
        return not self._dead and self._lifeline.is_ours

    def close(self) -> None:
        """End the process and wait for it; SIGKILL when it takes longer than 5 s."""
        if self._dead and self._lifeline.number < 0 and self._process is None:
            return
        self.kill_if_stopped()
        self.drop()
        if self._process is not None:
            self._process.wait()
            self._process = None
        elif self.pid:
            wait_for_fork(self.pid)

    def kill_if_stopped(self) -> None:
        """Kill a stopped process, which does not notice that its lifeline is closed."""
        if self.pid and not self._dead and processes.is_stopped(self.pid):
            processes.kill(self.pid)

    def drop(self) -> None:
        """Close our ends without waiting; the process ends when its launches have ended."""
        _handles.discard(self)
        self._dead = True
        self._connection.close()
        self._lifeline.close()
        self._birth.close()
        if self._process is not None:
            self._process.close_log()

    def has_exited(self) -> bool:
        """Return whether a dropped process has ended and is reaped."""
        return self._process is None or self._process.has_ended()

    def last_words(self) -> str:
        """Return how a process ended that should not have, and what it wrote."""
        return "the template was closed" if self._process is None else self._process.last_words()

    def log(self) -> str:
        """Return the last lines that the process wrote before it could report."""
        return "" if self._process is None else self._process.log()

    # --- requests ------------------------------------------------------------------------------

    def request(
        self, make: Callable[[int], fork_server.ForkRequest], streams: Sequence[int] = ()
    ) -> tuple[int, Connection, int]:
        """Ask for a fork: returns the request's token, and a connection and a lifeline to the fork.

        ``make`` gets the token. Raises Closed when the process that should fork is gone.
        """
        ours, theirs = pair()
        watched, lifeline = os.pipe()
        try:
            with self._sending:
                if self._dead:
                    raise Closed("the template is gone")
                self._token += 1
                self._connection.send(make(self._token), [theirs.fileno(), watched, *streams])
                return self._token, ours.hold(), lifeline
        except Closed:
            ours.close()
            os.close(lifeline)
            raise
        finally:
            theirs.close()
            os.close(watched)

    def prepare(self, key: TemplateKey) -> None:
        """Have the modules imported that this launch needs and that are known to be harmless."""
        if names := self._not_asked(key.modules):
            written = {n: v for n, v in of_imports().items() if key.variables({n: v})}
            self._send(fork_server.ImportModules(names, written))

    def offer(self, key: TemplateKey, more: Iterable[str]) -> None:
        """Offer modules to be tried while the process is idle."""
        offered = (name for name in (*key.candidates, *more) if not key.bars(name))
        if names := self._not_asked(offered):
            self._send(fork_server.TryModules(names, key.rules))

    def _not_asked(self, modules: Iterable[str]) -> list[str]:
        names = [name for name in modules if name not in self.asked]
        self.asked.update(names)
        return names

    def _send(self, message: Message) -> None:
        with self._sending:
            if not self._dead:
                try:
                    self._connection.send(message)
                except Closed:
                    self._dead = True

    # --- reports -------------------------------------------------------------------------------

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the first report; False when the process has ended or refused."""
        self._until(lambda: self._ready or self.refusal is not None, timeout)
        return self._ready

    def wait_end(self, pid: int, timeout: float = END_WAIT) -> int | None:
        """Return the wait status of a process that it forked, once nothing of that is left."""
        self._until(lambda: pid in self._ended, timeout)
        return self._ended.get(pid)

    def pid_of(self, token: int) -> int | None:
        """Return the pid of the process that was forked for a request."""
        self._until(lambda: token in self._forked, END_WAIT)
        return self._forked.get(token)

    def fork_failure(self, token: int) -> str:
        """Return why nothing could be forked for a request; empty if it was, or if not known."""
        self.pid_of(token)
        why = self._fork_failures.get(token)
        return (
            f"could not be started: {why}\n{limits()}. Raise the one that was reached"
            if why
            else ""
        )

    def _until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take in reports until ``done()`` or until the process is gone."""
        # In steps: poll(2) does not return when another thread drops this handle.
        step = _LOOK_SECONDS if timeout is None else timeout
        try:
            while not self._reader.until(lambda: self._dead or done(), step) and timeout is None:
                pass
        except BaseException:
            # After a Ctrl-C the next launch must not wait for the same import.
            self._dead = self._dead or not self._ready
            raise

    def _readable(self, timeout: float | None) -> bool:
        return not self._dead and self._connection.readable(timeout)

    def _read(self) -> bool:
        """Take in one report; False when the process is gone."""
        try:
            report, _ = self._connection.recv(0)
        except TimeoutError:
            return True
        except (Closed, OSError, ValueError):  # also: another thread has dropped this handle
            self._dead = True
            return False
        self._reports.handle(report)
        return True

    def _handlers(self) -> Handlers[[]]:
        table = Handlers[[]]()
        table.on(fork_server.Ready, self._on_ready)
        table.on(fork_server.ModulesImported, self._on_imported)
        table.on(fork_server.Forked, self._on_forked)
        table.on(fork_server.ForkFailed, self._on_fork_failed)
        table.on(fork_server.ProcessEnded, self._on_ended)
        table.on(fork_server.ForkUnsafe, self._on_refused)
        table.on(fork_server.ImportFailed, self._on_refused)
        return table

    def _on_ready(self, report: fork_server.Ready) -> None:
        self._ready, self.pid, self.imported.slowest = True, report.pid, report.slowest
        self._on_imported(report)
        slowest = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report.slowest)
        failed = "".join(f"; could not import {name}: {why}" for name, why in report.failed.items())
        _log.debug(
            "process %d is ready after %.2f s; slowest imports: %s%s",
            report.pid,
            time.monotonic() - self._began,
            slowest or "none",
            failed,
        )

    def _on_imported(self, report: fork_server.Ready | fork_server.ModulesImported) -> None:
        self.imported.add(report)

    def _on_forked(self, report: fork_server.Forked) -> None:
        self._forked[report.token] = report.pid
        self._ended.pop(report.pid, None)  # of an earlier process with the same number

    def _on_fork_failed(self, report: fork_server.ForkFailed) -> None:
        self._forked[report.token], self._fork_failures[report.token] = 0, report.why

    def _on_ended(self, report: fork_server.ProcessEnded) -> None:
        self._ended[report.pid] = report.status

    def _on_refused(self, report: fork_server.ForkUnsafe | fork_server.ImportFailed) -> None:
        self.refusal = report


def drop_all() -> None:
    """In a forked child of the launcher, close our ends: the processes belong to the parent."""
    for handle in list(_handles):
        handle.drop()
