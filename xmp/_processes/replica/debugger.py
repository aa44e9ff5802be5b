"""pdb on the launcher's terminal, from the first prompt until the program continues."""

from __future__ import annotations

import bdb
import io
import os
import pdb
import sys
from types import FrameType
from typing import Any

from .terminal_loan import TerminalLoan

__all__ = ["Debugger"]


class Debugger(pdb.Pdb):
    """The debugger of one thread, which steps over xmp's own frames."""

    def __init__(self) -> None:
        # After "continue", Ctrl-C is the launcher's again: pdb's own handler would stop here.
        super().__init__(nosigint=True, skip=["xmp", "xmp.*"])
        self.owner = os.getpid()
        self._loan = TerminalLoan()
        self.prompt = f"(Pdb rank {self._loan.rank}) "

    def begin(self, header: str | None = None) -> None:
        """Take the terminal, and read and write there once this replica's output has been shown."""
        if self._loan.take():
            streams: Any = (sys.stdin, sys.stdout)
            self.use_rawinput = self._loan.editable and None not in streams
            if not self.use_rawinput:
                # Standard output is captured or goes elsewhere: no prompt would be seen there.
                sink = os.fdopen(self._loan.sink, "w", -1, "utf-8", "replace", closefd=False)
                streams = (_Lines(self._loan.source), sink)
            self.stdin, self.stdout = streams
        self._loan.catch_up()
        if header is not None:
            self.message(header)

    def interaction(self, *args: Any, **rest: Any) -> None:
        self.begin()
        super().interaction(*args, **rest)

    def preloop(self) -> None:
        """Let the output catch up, before the first prompt and after each Ctrl-C."""
        self._loan.catch_up()
        super().preloop()

    def postcmd(self, stop: bool, line: str) -> bool:
        self._loan.catch_up()
        return super().postcmd(stop, line)

    def set_continue(self) -> None:
        super().set_continue()
        self._loan.give_back()

    def set_quit(self) -> None:
        super().set_quit()
        self._loan.give_back(f"the debugger of rank {self._loan.rank} was quit")

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Trace as pdb does, but interrupt on quitting: ``except Exception`` catches a BdbQuit."""
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            raise KeyboardInterrupt("the debugger was quit") from None


class _Lines(io.TextIOBase):
    """A reader that reads one line and no more: the rest of a pipe is the next debugger's."""

    def __init__(self, descriptor: int) -> None:
        self._bytes = io.FileIO(descriptor, closefd=False)

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        return self._bytes.readline().decode(errors="replace")  # without a buffer: byte by byte
