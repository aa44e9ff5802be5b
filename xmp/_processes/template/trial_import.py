"""A throw-away fork imports modules one after the other and says which left nothing behind."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
from collections.abc import Callable, Sequence

from xmp._types import ForkRules

from . import safety

__all__ = ["Trial", "silence"]

_SECONDS = 20.0
"""For one module: an import that takes longer hangs, or is none that others should wait for."""


class Trial:
    """The server's handle on the fork; ``pipe`` is readable when it has said something."""

    def __init__(self, names: Sequence[str], rules: ForkRules, leave: Callable[[], None]) -> None:
        """Fork it. In the child, ``leave`` lets go of the server's own descriptors."""
        self.pipe, said = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            leave()
            silence()
            _try(names, rules, said)
        os.close(said)
        os.set_blocking(self.pipe, False)
        self._heard = b""
        self._ends = time.monotonic() + _SECONDS

    @property
    def left(self) -> float:
        """The seconds that the module which it imports now may still take."""
        return max(0.0, self._ends - time.monotonic())

    def hear(self) -> bool:
        """Take in what it has said; False when it will say no more."""
        try:
            data = os.read(self.pipe, 65536)
        except BlockingIOError:
            return True
        self._heard += data
        self._ends = time.monotonic() + _SECONDS
        return bool(data)

    def kill(self) -> None:
        """End it; it is reaped where all children are."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> list[str]:
        """After its end: the modules that it found harmless, in the order of the trial."""
        os.close(self.pipe)
        return self._heard.decode().split()


def silence() -> None:
    """Lead the standard streams nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _try(names: Sequence[str], rules: ForkRules, said: int) -> None:
    """Import one after the other and name each that left nothing behind; never returns."""
    sockets = safety.connected_sockets()
    try:
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
            if safety.culprits(rules, sockets):
                break
            os.write(said, name.encode() + b"\n")
    finally:
        os._exit(0)
