"""The launcher and its user: a line on standard error, and signals that the replicas share.

They are in groups of their own, where those of the terminal do not reach them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["flush", "in_notebook", "on_quit", "say", "say_once", "signals_of_the_user"]

Handler = Callable[[int, object], None]

_said: set[str] = set()
_libc = ctypes.CDLL(None)


def flush() -> None:
    """Let what the program has written come before what its replicas write, and only once."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # none, or closed


def say(line: str) -> None:
    """One line on standard error, if the program has one that takes it."""
    try:
        sys.stderr.write(f"{line}\n")
    except (OSError, ValueError, AttributeError, RuntimeError):
        # Gone, closed, none, or in the midst of another line, if a signal's handler says this:
        # what is being done is more than what is said of it.
        pass


def say_once(line: str) -> None:
    """The same, unless the user of this process has been told already."""
    if line not in _said:
        _said.add(line)
        say(line)


def in_notebook() -> bool:
    """Whether this is a notebook's kernel: standard output is no descriptor, but a cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def signals_of_the_user(
    ask: Callable[[str], None], show: Callable[[], None], preempt: Callable[[], None]
) -> Iterator[None]:
    """While inside, Ctrl-Z stops the replicas too, Ctrl-\\ calls ``show``, SIGTERM ``preempt``.

    Ctrl-C is asked about: "interrupt" raises KeyboardInterrupt, unless it was for a debugger.
    """

    def stop(number: int, _: object) -> None:
        ask("pause")
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # here we stop, and from here we go on
        signal.signal(signal.SIGTSTP, stop)
        ask("resume")

    wanted: dict[int, Handler] = {
        signal.SIGTSTP: stop,
        signal.SIGQUIT: lambda *_: show(),
        signal.SIGTERM: lambda *_: preempt(),
        signal.SIGINT: lambda *_: ask("interrupt"),
    }
    with _handled(wanted):
        yield


@contextmanager
def on_quit(show: Callable[[], None]) -> Iterator[None]:
    """While inside, Ctrl-\\ (SIGQUIT) calls ``show``."""
    with _handled({signal.SIGQUIT: lambda *_: show()}):
        yield


@contextmanager
def _handled(wanted: Mapping[int, Handler]) -> Iterator[None]:
    """While inside, these signals have these handlers.

    Leaves signals alone for which the program has a handler of its own, and all of them outside
    the main thread, where Python allows none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = {number: handler for number, handler in wanted.items() if _has_none(number)}
    try:
        for number, handler in taken.items():
            signal.signal(number, handler)
        yield
    finally:
        for number in taken:
            signal.signal(number, _usual(number))


def _usual(number: int) -> Any:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def _has_none(number: int) -> bool:
    """Whether a signal has no handler, not even one that Python does not know of."""
    if signal.getsignal(number) is not _usual(number):
        return False
    if number == signal.SIGINT:
        return True
    action = (ctypes.c_void_p * 32)()  # faulthandler.register asks the kernel for its own
    _libc.sigaction(number, None, action)
    return action[0] is None
