"""Decides when the program's signal handlers run while xmp works in the main thread.

Python runs a handler between any two bytecodes of the main thread, and the handler may raise
(KeyboardInterrupt, pytest-timeout's exception) or use xmp itself. An exception there would break
off what xmp does half way: a descriptor that no variable holds yet would stay open for ever. So
while xmp works, the program's handlers are replaced by one that notes the signal, and they run

``deferred``  where xmp waits: nothing is half done, no lock is held;
``blocked``   later: xmp cleans up, for a bounded time;
``as_usual``  at once: code of the program runs, such as a reducer of its arguments;
``apart``     at once, and in their own places: the program's function runs, which may ask for its
              handlers, keep them and take its time.

The handlers of noted signals run at the latest when the outermost of these blocks ends. CPython
does not offer this
(https://docs.python.org/3/library/signal.html#note-on-signal-handlers-and-exceptions); blocking the
signals in the kernel would not help, as a thread of a library may receive them.

In threads other than the main one no handler runs, and all of this does nothing.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of signal: it is used in forks
import os
import sys
import threading
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from .kernel_handlers import set_in_python

__all__ = [
    "DUMP_SIGNAL", "Handler", "apart", "as_usual", "blocked", "deferred", "deliver", "from_handler",
    "give_up", "guard", "held_ends", "in_handler", "in_main", "interruptible", "is_noted",
    "keep_deferred", "returned", "returning", "step",
]  # fmt: skip

T = TypeVar("T")
Handler = Callable[[int, Any], object]

# SIGUSR1 and SIGUSR2 belong to Slurm, Lightning and users; libraries leave this one alone.
DUMP_SIGNAL = int(getattr(_signal, "SIGRTMIN", _signal.SIGUSR2)) + 6
"""The signal that asks a replica for its stacks."""
held_ends: list[int] = []
"""SIGTERMs received by a replica that has failed and is ending by itself."""
_AS_USUAL, _DEFERRED, _BLOCKED = range(3)
_LOOK_SECONDS = 1.0
_NUMBERS = tuple(
    sorted(int(n) for n in _signal.valid_signals() if n not in (_signal.SIGKILL, _signal.SIGSTOP))
)


class _Noted(BaseException):
    """A signal came while xmp waits: this ends the wait."""


def in_main() -> bool:
    return threading.current_thread() is _main()


def in_handler() -> bool:
    """Return whether this thread runs a handler of a signal now; only the main thread does."""
    if not in_main():
        return False
    codes = {_code_of(handler) for handler in map(_signal.getsignal, _NUMBERS) if callable(handler)}
    frame = sys._getframe(1) if codes else None
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def _code_of(handler: Any) -> Any:
    """Return the code of a function or method, or of the one behind a ``partial`` or an object."""
    while hasattr(handler, "func"):
        handler = handler.func
    known = getattr(handler, "__code__", None)
    return known or getattr(vars(type(handler)).get("__call__"), "__code__", None)


class _Guard:
    """The state of the main thread; ``guard`` is its only instance."""

    def __init__(self) -> None:
        self.mode = _AS_USUAL
        self.noted: dict[int, None] = {}
        """Signals whose handlers are still to run, in the order in which they came."""
        self.theirs: dict[int, Any] = {}
        """The program's handlers that are replaced."""
        self.ours: dict[int, Handler] = {}
        """xmp's own handlers, of signals for which the program has none."""
        self.waiting = False
        self.longest = _LOOK_SECONDS
        """Seconds of the longest single wait: a signal may have come to a thread of a library."""
        self.keeps = False
        """Whether signals are noted until the process ends (``keep_deferred``)."""
        self.raised: BaseException | None = None
        """The last exception that a handler of the program raised."""
        self.note: Handler = self._note
        self.set = set_in_python

    # --- the handler ---------------------------------------------------------------------------

    def _note(self, number: int, frame: Any) -> None:
        if self.mode == _AS_USUAL:
            self._run(number, frame)
            self._keep(number)
            return
        self.noted[number] = None
        if self.waiting:
            self.waiting = False
            raise _Noted

    def _run(self, number: int, frame: Any) -> None:
        handler = self.ours.get(number) or self.theirs.get(number) or _signal.getsignal(number)
        try:
            if callable(handler) and handler is not self.note:
                handler(number, frame)
        except BaseException as error:
            self.raised = error
            raise

    def _keep(self, number: int) -> None:
        """Keep xmp's handler in place where the program's handler has just set its successor.

        The successor takes the handler's place in ``theirs``: what it raises must be known as a
        handler's, and not pass for an error of what it has interrupted. signal(2) once reset a
        handler at each signal, so that handlers set themselves or a successor.
        """
        handler = _signal.getsignal(number)
        if number in self.theirs and callable(handler) and handler is not self.note:
            self.theirs[number] = handler
            self.set(number, self.note)

    def deliver(self) -> None:
        """Run the handlers of the noted signals; raise the exception of the first that raises."""
        before, self.mode = self.mode, _AS_USUAL
        try:
            self._run_noted(sys._getframe(2))
        finally:
            self.mode = before
            self.replace()  # a handler may have set others

    def _run_noted(self, frame: Any) -> None:
        while self.noted:
            number = next(iter(self.noted))
            del self.noted[number]
            try:
                self._run(number, frame)
            finally:
                self._run_noted(frame)

    # --- handlers come and go ------------------------------------------------------------------

    def replace(self) -> None:
        """Put xmp's handler in the place of every handler that is a Python callable."""
        raised: BaseException | None = None
        left = True
        while left:
            try:
                for number in _NUMBERS:
                    handler = _signal.getsignal(number)
                    if callable(handler) and handler is not self.note:
                        self.theirs[number] = handler
                        self.set(number, self.note)
                left = False
            except BaseException as error:  # of a handler that was still in its place
                raised = error
        if raised is not None:
            raise raised

    def wait_at_rest(self, longest: float) -> None:
        """Undo ``keep_deferred``: run handlers where this process waits, for so long at a time."""
        self.mode, self.keeps, self.longest = _DEFERRED, False, longest

    def end_rest(self) -> None:
        """Only note signals from now on, until ``restore``."""
        self.mode, self.longest = _BLOCKED, _LOOK_SECONDS

    def restore(self, but: Collection[int] = ()) -> None:
        """Put the program's handlers back, but not those in ``but`` nor those that it replaced.

        Callers at the end of a scope set the mode to ``_BLOCKED`` first: Python looks for signals
        as it enters a function, and an exception of a handler there would leave xmp's in place for
        good. A signal that is only noted is run here when all are back.
        """
        raised: BaseException | None = None
        left: Collection[int] = self.theirs
        try:
            while left:
                try:
                    left = [number for number in self.theirs if number not in but]
                    for number in left:
                        if _signal.getsignal(number) is self.note:
                            self.set(number, self.theirs[number])
                        del self.theirs[number]
                except BaseException as error:  # of a handler that is back in its place
                    raised = error
        finally:
            self.mode = _AS_USUAL
        if self.noted and not self.theirs:
            try:
                self._run_noted(sys._getframe(1))
            finally:
                self.raised = None
        if raised is not None:
            raise raised


guard = _Guard()
_handles: list[Callable[[], object]] = []
_main = threading.main_thread


class _Scope:
    """A ``with`` block within which the program's handlers run in one of the module's ways.

    The mode changes by one assignment: an exception of a handler before or after it leaves nothing
    half done.
    """

    def __init__(self, mode: int, apart: bool = False, insists: bool = False) -> None:
        self._mode = mode
        self._apart = apart
        self._insists = insists
        self._known: BaseException | None = None
        self._mine = False
        self._outermost = False
        self._before = _AS_USUAL

    def __enter__(self) -> None:
        if not in_main():
            return
        self._before, self._known = guard.mode, guard.raised
        # Inside ``blocked`` a wait of xmp is part of what must not be torn.
        mode = self._before if self._mode == _DEFERRED and self._before else self._mode
        self._outermost = not guard.theirs and mode != _AS_USUAL
        self._mine = True
        if self._outermost:
            try:
                guard.replace()
            except BaseException:
                guard.mode = _BLOCKED
                guard.restore()
                raise
        guard.mode = mode
        if mode == _AS_USUAL and self._before != _AS_USUAL:
            try:
                # What the program runs now may take long: also a result, which is loaded while a
                # message is taken in, and so ``blocked``.
                if guard.noted and not guard.keeps:
                    guard.deliver()
                if self._apart:
                    guard.restore(but=guard.ours)
            except BaseException:
                guard.mode = self._before
                guard.replace()
                raise

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not self._mine:
            return
        if self._mode == _AS_USUAL and self._before != _AS_USUAL:
            guard.mode = self._before
            guard.replace()  # the program may have set others
            lost = guard.raised if self._insists else None
            if lost is not None and lost is not self._known and lost is not error:
                raise lost
            return
        guard.mode = self._before
        if self._before != _AS_USUAL:
            return
        try:
            if guard.noted:
                guard.deliver()
        finally:
            if self._outermost:
                guard.mode = _BLOCKED
                guard.raised = None
                guard.restore()


def deferred() -> _Scope:
    """Within the block, run the program's handlers only where xmp waits, and at its end."""
    return _Scope(_DEFERRED)


def blocked() -> _Scope:
    """Within the block, run no handlers; for cleaning up, which must be done within seconds."""
    return _Scope(_BLOCKED)


def as_usual(insists: bool = False) -> _Scope:
    """Within the block, run handlers at once: it runs code of the program.

    With ``insists``, raise at its end what a handler has raised and a library has caught. While
    values are pickled and loaded, that is a library's mistake and not the program's wish: importlib
    takes a TimeoutError for a file that is not there, cloudpickle any Exception for a strange
    module. The launch would wait for ever.
    """
    return _Scope(_AS_USUAL, insists=insists)


def apart() -> _Scope:
    """Within the block, run the program's function as it would run without xmp."""
    return _Scope(_AS_USUAL, apart=True)


def keep_deferred() -> None:
    """Only note signals from here on until the process ends: for the last lines of a replica."""
    if in_main():
        guard.set = _signal.signal  # a call of ctypes would write into 100 pages of a fork
        guard.mode, guard.keeps = _BLOCKED, True
        guard.replace()


def step(seconds: float | None) -> float | None:
    """Return how long one wait may take: where handlers run at waits, at most a second."""
    if guard.mode != _DEFERRED or not in_main():
        return seconds
    return guard.longest if seconds is None else min(seconds, guard.longest)


def returning(end: Callable[[], object]) -> None:
    """Note a handle on its way to the caller: if it is lost, only ``end`` can end its launch."""
    if in_main():
        _handles.append(end)


def returned() -> None:
    """Forget the handle: the caller has it, or gets it with the next instruction."""
    del _handles[:]  # unlike after a call of clear(), Python runs no handler here


def give_up() -> None:
    """End the launch whose handle is on its way: the caller gets an exception instead."""
    while _handles and in_main():
        _handles.pop()()


def interruptible(call: Callable[..., T], *args: Any) -> T | None:
    """Wait by a call that loses nothing when interrupted; return None when a signal was noted.

    The caller must then release what others may need, and call ``deliver``.
    """
    if guard.mode != _DEFERRED or not in_main():
        return call(*args)
    result = None
    try:
        try:
            guard.waiting = True
            if not guard.noted:
                result = call(*args)
            guard.waiting = False
        except _Noted:
            pass
        except BaseException:
            guard.waiting = False
            raise
    except _Noted:
        pass  # the signal came while an exception was raised; the next call raises that again
    return result


def is_noted(number: int) -> bool:
    """Return whether this signal waits for its handler; only in the main thread can one wait."""
    return number in guard.noted and in_main()


def deliver() -> None:
    """Run the handlers of the noted signals, if handlers run at waits now."""
    if guard.noted and guard.mode == _DEFERRED and in_main():
        guard.deliver()


def from_handler(error: BaseException | None) -> bool:
    """Return whether an exception comes from a signal handler of the program, not from what ran."""
    return error is not None and error is guard.raised


def _after_fork() -> None:
    """Reset a forked child's state: its program knows nothing of xmp's work in the parent."""
    if guard.theirs or guard.ours:
        for number in [n for n in guard.ours if n not in guard.theirs]:
            _signal.signal(number, _signal.SIG_DFL)
        guard.mode, guard.waiting, guard.keeps = _AS_USUAL, False, False
        guard.noted.clear()
        guard.ours.clear()
        guard.restore()


os.register_at_fork(after_in_child=_after_fork)
