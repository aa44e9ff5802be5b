"""The launcher's handles on processes that fork supervisors: templates, keepers, script holders.

A handle has a socket for requests and reports, and a lifeline: when this process ends, however
it ends, the kernel closes both.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xmp import _marks
from xmp._errors import StartError
from xmp._payload.script import MainSource
from xmp._types import ForkRules

from . import family, identity, kernel, marked, pools, state
from .needs import Needs, identity_key
from .wire import Closed, Wire, pair

__all__ = ["Template", "drop_all"]

_IDLE_SECONDS = 600.0
_LOOK_SECONDS = 0.5
# -c puts the working folder first in sys.path, where a user's file may shadow a library.
_BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p] + [sys.argv[1]]; "
    "from xmp._processes.template import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
_live: weakref.WeakSet[Template] = weakref.WeakSet()


class Template:
    """A handle; see the module. Safe to use from several threads."""

    def __init__(self, wire: Wire, lifeline: int, pid: int = 0) -> None:
        self.pid = pid
        self.refusal: tuple[Any, ...] | None = None
        """Why a script holder gave up: ("unsafe", culprits) or ("failed", traceback, error)."""
        self.used = False
        """Whether a launch has had it before."""
        self.slowest: list[tuple[str, float]] = []
        self.failed: dict[str, str] = {}
        self._wire = wire
        self._lifeline = lifeline
        self._log = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._identity = identity_key()
        self._packages: dict[str, str] = {}
        """The files of its top-level packages: where they agree, so do the modules inside."""
        self._asked: set[str] = set()
        self._environments: list[dict[str, str]] = []
        self._holder: tuple[MainSource, Template] | None = None
        self._ended: dict[int, int] = {}
        self._forked: dict[int, int] = {}
        self._token = 0
        self._ready = self._dead = self._reading = False
        self._changed = threading.Condition()
        _live.add(self)

    # --- starting and ending -------------------------------------------------------------------

    @classmethod
    def start(cls, modules: Sequence[str], rules: ForkRules, title: str) -> Template:
        """Start an interpreter of its own; does not wait until it is ready."""
        ours, theirs = pair()
        heard, lifeline = os.pipe()
        self = cls(ours, lifeline)
        self._log = kernel.memory_file("xmp-template-log")
        environment = {**os.environ, **pools.one_thread_environment(), **dict(rules.quiet)}
        environment[_marks.VARIABLE] = str(_marks.mine())
        # coverage.py shall start where the working folder and the paths are the launcher's.
        environment.pop("COVERAGE_PROCESS_START", None)
        command = [identity.executable(), *identity.interpreter_flags(), "-c", _BOOT]
        command += [identity.package_root, str(theirs.fileno()), str(heard)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, cwd="/",
                pass_fds=(theirs.fileno(), heard), env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.drop()
            raise StartError(f"cannot start {command[0]}: {error}") from error
        finally:
            theirs.close()
            os.close(heard)
        self.pid = self._process.pid
        self._asked.update(modules)
        self._environments.append(environment)
        idle = None if "ipykernel" in sys.modules else _IDLE_SECONDS
        try:
            ours.send((_path(), list(modules), idle, title))
        except Closed:
            words = self.last_words()
            self.close()
            raise StartError(words) from None
        return self

    @classmethod
    def fork(cls, without: Iterable[int] = ()) -> Template:
        """Fork this process into a keeper, for ``start_method="fork"``, less these open files."""
        from . import template

        ours, theirs = pair()
        heard, lifeline = os.pipe()
        mark = str(_marks.mine())
        pid = kernel.fork_quietly()
        if pid == 0:
            marked.leave(mark)
            os.setsid()
            ours.close()
            os.close(lifeline)
            kernel.send_nowhere(without)
            template.serve(theirs, heard)
        theirs.close()
        os.close(heard)
        return cls(ours, lifeline, pid)

    def close(self, timeout: float = 5.0) -> None:
        """End the process and wait for it; SIGKILL when it takes longer than ``timeout``."""
        if self._dead and self._lifeline < 0 and self._process is None:
            return
        self._kill_if_stopped()
        self.forget_holder(timeout)
        self.drop()
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout)
            self._process = None
        elif self.pid:
            _wait_for(self.pid, timeout)

    def _kill_if_stopped(self) -> None:
        """A stopped process cannot notice that it shall end."""
        if self.pid and not self._dead and family.is_stopped(self.pid):
            family.kill(self.pid)

    def drop(self) -> None:
        """Close our ends without waiting; the process ends when its launches have."""
        _live.discard(self)
        self._dead = True
        self._wire.close()
        for name in ("_lifeline", "_log"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)
        if self._holder is not None:
            self._holder[1].drop()

    def has_exited(self) -> bool:
        """Whether a dropped process is gone (and reaped)."""
        return self._process is None or self._process.poll() is not None

    # --- asking --------------------------------------------------------------------------------

    def request(self, name: str, *rest: Any, descriptors: Sequence[int] = ()) -> int:
        """Ask for a fork; returns the request's token. Raises Closed when nobody is there."""
        with self._changed:
            if self._dead:
                raise Closed("the template is gone")
            self._token += 1
            self._wire.send((name, self._token, *rest), list(descriptors))
            return self._token

    def _tell(self, *message: Any) -> None:
        with self._changed:
            if not self._dead:
                try:
                    self._wire.send(message)
                except Closed:
                    self._dead = True

    def fits(self, needs: Needs) -> bool:
        """Whether a launch with these needs may use this template.

        A variable counts as equal when it has the value from before or after the template's own
        imports, which some of them write into the environment themselves.
        """
        self._hear_all()
        if self._dead or self._identity != identity_key():
            return False
        ours = needs.variables(os.environ)
        names = set(ours) | set(needs.variables(self._environments[0]))
        names -= {*pools.one_thread_environment(), *(name for name, _ in needs.rules.quiet)}
        for name in names:
            if all(ours.get(name) != known.get(name) for known in self._environments):
                return False
        return all(_file_here(name) in ("", file) for name, file in self._packages.items())

    def prepare(self, needs: Needs) -> None:
        """Have the modules imported that this launch knows to be harmless."""
        missing = [name for name in needs.modules if name not in self._asked]
        if missing:
            self._asked.update(missing)
            self._tell("import", missing)

    def offer(self, needs: Needs, more: Iterable[str] = ()) -> None:
        """Offer modules to be tried while idle."""
        offered = (*needs.candidates, *more)
        names = [name for name in offered if name not in self._asked and not needs.bars(name)]
        if names:
            self._asked.update(names)
            self._tell("candidates", names, needs.rules)

    # --- the script holder ---------------------------------------------------------------------

    def holder_of(
        self, source: MainSource, launcher: state.LauncherState, rules: ForkRules
    ) -> Template:
        """The handle on the process that has imported this script, made now if there is none."""
        if self._holder is not None:
            if self._holder[0] == source and self._holder[1].alive:
                return self._holder[1]
            self.forget_holder()
        ours, theirs = pair()
        heard, lifeline = os.pipe()
        streams = state.standard_streams()
        try:
            ends = [theirs.fileno(), heard, *streams]
            self.request("script", source, launcher, rules, descriptors=ends)
        finally:
            theirs.close()
            for descriptor in (heard, *streams):
                os.close(descriptor)
        holder = Template(ours, lifeline)
        holder._asked.update(self._asked)
        self._holder = (source, holder)
        return holder

    def forget_holder(self, timeout: float = 5.0) -> None:
        """End the script holder."""
        if self._holder is not None:
            holder, self._holder = self._holder[1], None
            holder._kill_if_stopped()
            pid = holder.pid
            holder.drop()
            if pid and not self._dead:
                self.wait_end(pid, timeout)

    @property
    def alive(self) -> bool:
        """Whether the process still answers, as far as we have heard."""
        self._hear_all()
        return not self._dead

    # --- hearing -------------------------------------------------------------------------------

    def _hear_all(self) -> None:
        self._until(lambda: not self._wire.readable(0), None)

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the first report; False when the process ended or gave up."""
        self._until(lambda: self._ready or self.refusal is not None, timeout)
        return self._ready

    def wait_end(self, pid: int, timeout: float) -> int | None:
        """The wait status of a process that it forked, once nothing of that is left."""
        self._until(lambda: pid in self._ended, timeout)
        return self._ended.get(pid)

    def pid_of(self, token: int, timeout: float = 5.0) -> int | None:
        """The pid of the process that was forked for a request."""
        self._until(lambda: token in self._forked, timeout)
        return self._forked.get(token)

    def _until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Take in reports until ``done()``. Of several waiting threads one reads for all."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._dead and not done():
                left = None if end is None else end - time.monotonic()
                if left is not None and left < 0:
                    return
                if self._reading:
                    self._changed.wait(left)
                else:
                    self._read_one(left)

    def _read_one(self, timeout: float | None) -> None:
        self._reading = True
        self._changed.release()
        report: tuple[Any, ...] = ("gone",)
        try:
            # Another thread may drop this handle meanwhile: then nothing comes on our number.
            report = self._wire.recv(_LOOK_SECONDS if timeout is None else timeout)[0]
        except TimeoutError:
            report = ("nothing",)
        except (Closed, OSError, ValueError):
            pass
        finally:
            self._changed.acquire()
            self._reading = False
            self._take(report)
            self._changed.notify_all()

    def _take(self, report: tuple[Any, ...]) -> None:
        kind, *rest = report
        if kind == "gone":
            self._dead = True
        elif kind == "ended":
            self._ended[rest[0]] = rest[1]
        elif kind == "forked":
            self._forked[rest[1]] = rest[0]
            self._ended.pop(rest[0], None)  # of an earlier process with the same number
        elif kind == "ready":
            self._take_facts(**rest[0])
        elif kind == "took":
            self._packages.update(_top_level(rest[0]))
            self._environments.append(rest[1])
        elif kind in ("unsafe", "failed"):
            self.refusal = report

    def _take_facts(
        self,
        pid: int,
        modules: dict[str, str],
        after: dict[str, str],
        slowest: list[tuple[str, float]],
        failed: dict[str, str],
    ) -> None:
        self._ready, self.pid = True, pid
        self._packages.update(_top_level(modules))
        self._environments.append(after)
        self.slowest, self.failed = slowest, failed

    def last_words(self) -> str:
        """How a process ended that should not have, and what it wrote."""
        code: int | str = "unknown"
        if self._process is not None:
            try:
                code = self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                code = "still running"
        said = f":\n{self.log()}" if self.log() else " without a word"
        return f"{identity.executable()} did not come up as template (exit code {code}){said}"

    def log(self) -> str:
        """The last lines that the process wrote before it could report."""
        if self._log < 0:
            return ""
        size = os.fstat(self._log).st_size
        return os.pread(self._log, 4096, max(0, size - 4096)).decode(errors="replace").strip()


def _top_level(modules: dict[str, str]) -> dict[str, str]:
    return {name: file for name, file in modules.items() if "." not in name}


def _file_here(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__file__", None) or "")


def _path() -> list[str]:
    """``sys.path`` without the folders of the script and the shell: their ``random.py`` must not
    shadow a library of the template's."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.dirname(os.path.abspath(main)) if main else ""
    kept = [p for p in sys.path if p != script and os.path.isabs(p)]
    return kept if identity.package_root in kept else [*kept, identity.package_root]


def _wait_for(pid: int, timeout: float) -> None:
    """Wait for a child that was forked without the subprocess module."""
    watch = kernel.open_pidfd(pid)
    if watch is not None:
        poller = select.poll()
        poller.register(watch, select.POLLIN)
        if not poller.poll(timeout * 1000):
            os.kill(pid, signal.SIGKILL)
        os.close(watch)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # the launcher ignores SIGCHLD: the kernel has reaped it


def drop_all() -> None:
    """In a forked child of the launcher: close our ends, so that they mean what they say."""
    for template in list(_live):
        template.drop()
