"""The signals that the user sends while the launcher waits: Ctrl-C, Ctrl-Z, Ctrl-\\\\, SIGTERM.

Replicas are in another session, where the signals of the terminal do not reach them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from xmp._log import say
from xmp._processes.messages.launch import Interrupt, Pause, Resume

__all__ = ["in_notebook", "on_quit", "say", "signals_of_the_user"]

Handler = Callable[[int, object], None]

_libc = ctypes.CDLL(None)


def in_notebook() -> bool:
    """Whether this is a notebook's kernel: standard output is no descriptor, but a cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def signals_of_the_user(
    ask: Callable[[Interrupt | Pause | Resume], None],
    show: Callable[[], None],
    preempt: Callable[[], None],
) -> AbstractContextManager[None]:
    """While inside, Ctrl-Z stops the replicas too, Ctrl-\\ calls ``show``, SIGTERM ``preempt``.

    Ctrl-C is asked about: ``Interrupt`` raises KeyboardInterrupt, unless it was for a debugger.
    """

    def stop(number: int, _: object) -> None:
        ask(Pause())
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # stops here, and goes on from here
        signal.signal(signal.SIGTSTP, stop)
        ask(Resume())

    return _handled(
        {
            signal.SIGTSTP: stop,
            signal.SIGQUIT: lambda *_: show(),
            signal.SIGTERM: lambda *_: preempt(),
            signal.SIGINT: lambda *_: ask(Interrupt()),
        }
    )


def on_quit(show: Callable[[], None]) -> AbstractContextManager[None]:
    """While inside, Ctrl-\\ (SIGQUIT) calls ``show``."""
    return _handled({signal.SIGQUIT: lambda *_: show()})


@contextmanager
def _handled(wanted: Mapping[int, Handler]) -> Iterator[None]:
    """While inside, these signals have these handlers.

    Leaves a signal alone for which the program has its own handler, and all of them outside the
    main thread, where Python allows no handler to be set.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = {number: handler for number, handler in wanted.items() if _is_free(number)}
    try:
        for number, handler in taken.items():
            signal.signal(number, handler)
        yield
    finally:
        for number in taken:
            signal.signal(number, _default(number))


def _default(number: int) -> Any:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def _is_free(number: int) -> bool:
    """Whether a signal has no handler, not even one that Python does not know of."""
    if signal.getsignal(number) is not _default(number):
        return False
    if number == signal.SIGINT:
        return True
    action = (ctypes.c_void_p * 32)()  # faulthandler.register sets its handler there
    _libc.sigaction(number, None, action)
    return action[0] is None
