"""The loop of a process that forks supervisors: template, keeper and script holder are such.

It takes in and ends the orphans that a killed supervisor leaves, and tries further modules in
throw-away forks while it is idle.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from xmp._imports import without_collections
from xmp._types import ForkRules

from . import family, kernel, pools
from .spare import NAME, Spare
from .trial import Trial
from .wire import Closed, Wire

__all__ = ["SUPERVISOR", "Server", "import_all", "origin", "settle"]

SUPERVISOR = "xmp-supervisor"
_LOOK_SECONDS = 0.2

Become = Callable[[tuple[Any, ...], list[int], "float | None"], None]
"""What a fresh child turns into: request, its descriptors, idle seconds; never returns."""


def origin(module: Any) -> str:
    return str(getattr(module, "__file__", None) or "")


def import_all(modules: Iterable[str]) -> tuple[dict[str, str], list[tuple[str, float]]]:
    """Import what is not there yet; returns why some could not be, and what took longest."""
    failed, took = {}, []
    with without_collections():
        for name in modules:
            if name in sys.modules:
                continue
            start = time.perf_counter()
            try:
                importlib.import_module(name)
            except BaseException as error:
                failed[name] = f"{type(error).__name__}: {error}"
            took.append((name, time.perf_counter() - start))
    took.sort(key=lambda item: -item[1])
    return failed, took[:3]


def settle() -> None:
    """Leave the heap in the state that forks share best."""
    pools.pause()
    for entry, finder in list(sys.path_importer_cache.items()):
        if finder is None:  # a folder that is not there now may be there at the next launch
            del sys.path_importer_cache[entry]
    # A collection in a child would write into every object's header and unshare its page.
    gc.collect()
    gc.freeze()
    kernel.tidy_heap()


class Server:
    """The loop: one connection to the launcher, any number of children."""

    def __init__(
        self,
        wire: Wire,
        lifeline: int,
        launcher: int,
        idle: float | None,
        become: Become,
        single: bool = False,
        grace: float = 0.5,
        rehearse: Callable[[], None] = lambda: None,
    ) -> None:
        self._grace = grace
        self._rehearse = rehearse
        self._become = become
        self._single = single
        self._wire = wire
        self._lifeline = lifeline
        self._idle = idle
        self._own: set[int] = set()
        self._unended: set[int] = set()
        """What no signal ends: it is not to be waited for again and again."""
        self._candidates: list[str] = []
        self._rules = ForkRules()
        self._spare: Spare | None = None
        self._wants_spare = False
        self._trial: Trial | None = None
        self._selector = selectors.DefaultSelector()
        self._wakeup = _wakeup_on_children()
        self._open = True
        # A child that a C library forks from the launcher has copies of all that we listen to.
        watch = kernel.open_pidfd(launcher)
        self._launcher = -1 if watch is None else watch
        self._pid = launcher
        self._ends: float | None = None
        """When everything ends that has not by itself: set once the launcher is dead."""
        for source in (wire.fileno(), self._wakeup[0], self._launcher):
            if source >= 0:
                self._selector.register(source, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the launcher is gone and every supervisor has ended."""
        while self._open or self._own:
            events = self._selector.select(self._patience())
            self._look_for_launcher()
            if self._ends is not None and time.monotonic() >= self._ends:
                break  # a stopped supervisor does not notice that it should have ended
            if not events and self._is_time_for_spare():
                self._spare = Spare(self._leave, self._wait)
                self._wants_spare = False
            elif not events and not self._candidates and not self._own and self._trial is None:
                return  # idle for too long
            for key, _ in events:
                self._handle(key.fd)
            if self._trial is None and self._candidates and not events:
                self._try_candidates()
            elif self._trial is not None and self._trial.left == 0:
                self._trial.kill()
            if self._open:
                self._flush()
        family.end_descendants()

    def _look_for_launcher(self) -> None:
        """Without a pidfd: a closed connection alone may be a template that was replaced."""
        if self._launcher < 0 and not self._open and family.is_gone(self._pid):
            self._stop_listening()

    def _patience(self) -> float | None:
        if self._ends is not None:
            return max(0.0, self._ends - time.monotonic())
        if self._launcher < 0 and not self._open:
            return _LOOK_SECONDS
        if self._trial is not None:
            return self._trial.left
        if self._candidates:
            return 0.05  # a launch that follows at once goes first
        if self._is_time_for_spare():
            return 0.005  # candidates may come, which it should have imported
        return self._idle if not self._own else None

    def _handle(self, descriptor: int) -> None:
        if descriptor == self._wakeup[0]:
            _drain(descriptor)
            self._reap()
        elif descriptor == self._wire.fileno():
            try:
                self._serve(*self._wire.recv())
            except Closed:
                # The launcher may live on: it closes what it replaces while launches still run.
                self._selector.unregister(descriptor)
                self._open = False
        elif descriptor == self._launcher:
            self._stop_listening()
        elif self._trial is not None and not self._trial.hear():
            self._selector.unregister(descriptor)  # its end will be reaped

    def _stop_listening(self) -> None:
        """The launcher is dead: what is ours ends by itself, or is ended."""
        self._open = False
        if self._ends is None:
            self._ends = time.monotonic() + self._grace
        for source in (self._wire.fileno(), self._launcher):
            if source >= 0 and source in self._selector.get_map():
                self._selector.unregister(source)

    def _flush(self) -> None:
        try:
            self._wire.flush()
        except Closed:
            pass  # the end of the connection is noticed where it is read

    def _serve(self, request: tuple[Any, ...], descriptors: list[int]) -> None:
        if request[0] == "candidates":
            self._candidates += [name for name in request[1] if name not in sys.modules]
            self._rules = request[2]
            return
        if request[0] == "import":
            self._take(request[1])
            return
        pid = self._child_for(request, descriptors)
        self._own.add(pid)
        self._wire.post(("forked", pid, request[1]))
        for descriptor in descriptors:
            os.close(descriptor)
        if self._single:  # the launcher's open files are the replicas' to inherit, not ours
            epoll = getattr(self._selector, "fileno", lambda: self._lifeline)()
            own = (self._wire.fileno(), self._lifeline, self._launcher, epoll, *self._wakeup)
            kernel.let_go(own)

    def _child_for(self, request: tuple[Any, ...], descriptors: list[int]) -> int:
        spare = self._spare
        if spare is not None and request[0] == "fork":
            self._spare = None
            if spare.give(request, descriptors):
                return spare.pid
        pid = os.fork()
        if pid == 0:
            self._leave()
            self._become(request, descriptors, self._idle)
        return pid

    # --- the spare -----------------------------------------------------------------------------

    def _is_time_for_spare(self) -> bool:
        idle = not self._own and not self._candidates and self._trial is None
        return self._wants_spare and idle and self._open

    def _wait(self, wire: Wire) -> NoReturn:
        """In the spare child: be what the next request asks for."""
        try:
            kernel.set_name(NAME)
            self._rehearse()
            request, descriptors = wire.recv()
        except BaseException:  # nobody needs it any more, or it is of no use
            os._exit(0)
        wire.close()
        self._become(request, descriptors, self._idle)
        os._exit(1)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.end()
            self._spare, self._wants_spare = None, True

    # --- children ------------------------------------------------------------------------------

    def _leave(self) -> None:
        """In a fresh child: let go of everything that is the template's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._wire.close()
        for descriptor in (*self._wakeup, self._lifeline, self._launcher):
            if descriptor >= 0:
                os.close(descriptor)
        if self._trial is not None:
            os.close(self._trial.pipe)
        if self._spare is not None:
            self._spare.close()

    def _reap(self) -> None:
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._unended.discard(pid)
            if pid in self._own:
                self._own.discard(pid)
                ended.append((pid, status))
                self._wants_spare = self._spare is None and not self._single
            elif self._spare is not None and pid == self._spare.pid:
                self._spare.close()
                self._spare = None
            elif self._trial is not None and pid == self._trial.pid:
                self._end_trial(self._trial)
        self._end_orphans()
        for pid, status in ended:
            self._wire.post(("ended", pid, status))

    def _end_orphans(self) -> None:
        if not self._single:
            # Of a script holder that was killed: their launches go on.
            strangers = set(family.children(os.getpid())) - self._own
            self._own |= {pid for pid in strangers if _command(pid) == SUPERVISOR}
        others = {child.pid for child in (self._trial, self._spare) if child is not None}
        self._unended |= family.end_descendants(self._own | others | self._unended)

    # --- candidates: modules that the next launch would like to find imported ------------------

    def _try_candidates(self) -> None:
        self._trial = Trial(self._candidates, self._rules, self._leave)
        self._selector.register(self._trial.pipe, selectors.EVENT_READ)

    def _end_trial(self, trial: Trial) -> None:
        """It has ended: take what it found harmless, refuse the next one."""
        trial.hear()
        if trial.pipe in self._selector.get_map():
            self._selector.unregister(trial.pipe)
        self._trial = None
        good = trial.close()
        rest = self._candidates[len(good) + 1 :]  # the one after the last good one was refused
        self._take(good)
        self._candidates = [name for name in rest if name not in sys.modules]

    def _take(self, names: list[str]) -> None:
        self._drop_spare()
        kernel.arm(self._lifeline)
        import_all(names)
        settle()
        kernel.disarm(self._lifeline)
        taken = {name: origin(sys.modules[name]) for name in names if name in sys.modules}
        self._wire.post(("took", taken, dict(os.environ)))


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _wakeup_on_children() -> tuple[int, int]:
    """A pipe that becomes readable whenever a child has ended."""
    heard, said = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(said, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(said, warn_on_full_buffer=False)
    return heard, said


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
