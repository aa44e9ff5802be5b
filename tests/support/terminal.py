"""A terminal: what programs show there is read, what is typed reaches them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte

from tests.support.stage import Stage
from tests.support.waiting import until

__all__ = ["CTRL_BACKSLASH", "CTRL_C", "CTRL_D", "CTRL_Z", "Terminal", "on_a_terminal"]

CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x04", "\x1a", "\x1c"
STREAMS = ("stdin", "stdout", "stderr")
SECONDS = 25
# What a line editor sends to paint: colours, "clear to the end of the line", bracketed paste.
_PAINT = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


class Terminal:
    """A pseudo-terminal, the controlling one of the program that is started in it."""

    def __init__(self, stage: Stage, rows: int = 24, columns: int = 80) -> None:
        self.stage = stage
        self.master, self._slave = pty.openpty()
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, size)
        self.modes = termios.tcgetattr(self._slave)
        self.process: subprocess.Popen[str]
        """The program that was started last."""
        self.raw = b""
        """Everything that was written."""
        self.shown = ""
        """The same as text, without its paint."""
        self._seen = 0
        self._screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=0.5)
        self._emulator = pyte.ByteStream(self._screen)
        self._drawn = 0

    # --- programs ------------------------------------------------------------------------------

    def start(
        self, source: str, *argv: str, streams: tuple[str, ...] = STREAMS, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a script with these streams here, unless ``options`` say otherwise."""
        self.process = self.stage.start(source, *argv, **self._options(streams, options))
        return self.process

    def start_command(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start any program here."""
        self.process = self.stage.start_command(*command, **self._options(STREAMS, options))
        return self.process

    def _options(self, streams: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
        env = {"TERM": "xterm-256color", **options.pop("env", {})}
        here = dict.fromkeys(streams, self._slave)
        return {**here, "preexec_fn": self._take_terminal, "env": env, **options}

    def _take_terminal(self) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)

    def end(self) -> int:
        """Read until the program has ended and nothing more comes; its exit status."""
        end = time.monotonic() + SECONDS
        while self.read(0.1):
            assert time.monotonic() < end, self._whole_text()
            if self.process.poll() is not None and not select.select([self.master], [], [], 0)[0]:
                break
        return self.process.wait(5)

    def close(self) -> None:
        os.close(self.master)
        os.close(self._slave)

    # --- the person in front of it -------------------------------------------------------------

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self.master, keys.encode())

    def answer(self, prompt: str, line: str) -> str:
        """Type a line at a prompt; returns what was shown before the prompt."""
        before = self.see(prompt)
        self.type(f"{line}\n")
        return before

    def read(self, seconds: float) -> bool:
        """Take in what comes; False at the end."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # a pseudo-terminal ends with EIO
            return False
        self.raw += data
        self.shown += _PAINT.sub("", data.decode(errors="replace"))
        return bool(data)

    def see(self, wanted: str, seconds: float = 30) -> str:
        """Wait until this appears behind what was seen last; returns what came before it."""
        shown = self.sees(wanted, seconds)
        assert shown is not None, (
            f"not within {seconds} s: {wanted!r} in\n{self.shown[self._seen :]}"
        )
        return shown

    def sees(self, wanted: str, seconds: float) -> str | None:
        """The same, or None when it does not appear."""
        end = time.monotonic() + seconds
        while (place := self.shown.find(wanted, self._seen)) < 0:
            left = end - time.monotonic()
            if left <= 0 or not self.read(min(left, 0.1)):
                return None
        before = self.shown[self._seen : place]
        self._seen = place + len(wanted)
        return before

    # --- the screen ----------------------------------------------------------------------------

    @property
    def screen(self) -> pyte.HistoryScreen:
        """What a terminal emulator makes of it."""
        self._emulator.feed(self.raw[self._drawn :])
        self._drawn = len(self.raw)
        return self._screen

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def text(self) -> list[str]:
        """All that was written and is not erased, also what has scrolled away."""
        gone = [
            "".join(row[column].data for column in range(self.screen.columns)).rstrip()
            for row in self.screen.history.top
        ]
        return [row for row in [*gone, *self.rows()] if row]

    def _whole_text(self) -> str:
        return "\n".join(self.text())

    def shows(self, pattern: str) -> bool:
        return re.search(pattern, "\n".join(self.rows()), re.MULTILINE) is not None

    def wait(self, condition: Callable[[], object]) -> None:
        """Read until a condition holds."""

        def holds() -> object:
            self.read(0.02)
            return condition()

        until(holds, SECONDS, self._whole_text)

    @property
    def whole(self) -> bool:
        """Whether the terminal scrolls as a whole."""
        margins = self.screen.margins
        return margins is None or (margins.top, margins.bottom) == (0, self.screen.lines - 1)

    # --- the terminal itself -------------------------------------------------------------------

    def modes_now(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def foreground(self) -> int:
        """The group in the foreground, as seen from the other side."""
        found = fcntl.ioctl(self.master, termios.TIOCGPGRP, bytes(4))
        return int.from_bytes(found, "little")


@contextmanager
def on_a_terminal(
    folder: Path,
    *arguments: str,
    source: str,
    rows: int = 24,
    columns: int = 100,
    shell: str | None = None,
    **env: str,
) -> Iterator[Terminal]:
    """A script as the only program of a terminal, or started there by a shell of this source."""
    stage = Stage(folder, path=())
    terminal = Terminal(stage, rows, columns)
    command = [sys.executable, str(stage.write(source, "train.py")), *arguments]
    before = [] if shell is None else [sys.executable, "-c", shell]
    process = terminal.start_command(*before, *command, env=env)
    try:
        yield terminal
    finally:
        process.kill()
        process.wait()
        terminal.close()
