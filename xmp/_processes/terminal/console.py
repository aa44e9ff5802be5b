"""The signals that the user sends while the launcher waits: Ctrl-C, Ctrl-Z, Ctrl-\\\\, SIGTERM.

Replicas are in another session, where the signals of the terminal do not reach them.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from xmp._os import own_handlers
from xmp._os.log import say
from xmp._processes.messages.launch import Interrupt, Pause, Resume

__all__ = ["in_notebook", "on_quit", "say", "signals_of_the_user"]


def in_notebook() -> bool:
    """Whether this is a notebook's kernel: standard output is no descriptor, but a cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def signals_of_the_user(
    ask: Callable[[Interrupt | Pause | Resume], None],
    show: Callable[[], None],
    preempt: Callable[[], None] | None = None,
) -> AbstractContextManager[None]:
    """While inside, Ctrl-Z stops the replicas too, Ctrl-\\ calls ``show``, SIGTERM ``preempt``.

    Without ``preempt`` SIGTERM does what it does outside. Ctrl-C is asked about: ``Interrupt``
    raises KeyboardInterrupt, unless it was for a debugger.
    Leaves a signal alone for which the program has its own handler.
    """

    def stop(number: int, _: object) -> None:
        ask(Pause())
        own_handlers.by_default(number)  # stops here, and goes on from here
        ask(Resume())

    handlers: dict[int, Callable[[int, object], None]] = {
        signal.SIGTSTP: stop,
        signal.SIGQUIT: lambda *_: show(),
        signal.SIGINT: lambda *_: ask(Interrupt()),
    }
    if preempt is not None:
        handlers[signal.SIGTERM] = lambda *_: preempt()
    return own_handlers.handled(handlers)


def on_quit(show: Callable[[], None]) -> AbstractContextManager[None]:
    """While inside, Ctrl-\\ (SIGQUIT) calls ``show``."""
    return own_handlers.handled({signal.SIGQUIT: lambda *_: show()})
