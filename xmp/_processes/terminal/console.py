"""The signals that the user sends while the launcher waits: Ctrl-C, Ctrl-Z, Ctrl-\\\\, SIGTERM.

Replicas are in another session, where the terminal's signals do not reach them.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from xmp._os import own_handlers
from xmp._processes.messages.launch import Interrupt, Pause, Resume

__all__ = ["in_notebook", "on_quit", "signals_of_the_user"]


def in_notebook() -> bool:
    """Return whether this is a notebook's kernel, whose standard output is a cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def signals_of_the_user(
    ask: Callable[[Interrupt | Pause | Resume], None],
    show: Callable[[], None],
    preempt: Callable[[], None] | None = None,
) -> AbstractContextManager[None]:
    """While inside, let Ctrl-Z stop the replicas too, Ctrl-\\ call ``show``, SIGTERM ``preempt``.

    Without ``preempt`` SIGTERM does what it does outside. Ctrl-C calls ``ask`` with ``Interrupt``,
    which raises KeyboardInterrupt unless it was for a debugger. A signal for which the program has
    its own handler is left alone.
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
    """While inside, let Ctrl-\\ (SIGQUIT) call ``show``."""
    return own_handlers.handled({signal.SIGQUIT: lambda *_: show()})
