"""The launcher and its terminal: a line for the user; Ctrl-Z stops the replicas as well.

They are in groups of their own, where the terminal's signals do not reach them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["say", "stopped_together"]


def say(line: str) -> None:
    """One line on standard error, if the program has one."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")


@contextmanager
def stopped_together(ask: Callable[[str], None]) -> Iterator[None]:
    """While inside, a SIGTSTP first asks for "pause", and a continued launcher for "resume".

    Leaves the signal alone where the program has a handler of its own, and outside the main
    thread, where Python allows none.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: object) -> None:
        ask("pause")
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # here we stop, and from here we go on
        signal.signal(signal.SIGTSTP, stop)
        ask("resume")

    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
