"""A terminal that a program is started on, and what somebody in front of it sees."""

from __future__ import annotations

import fcntl
import os
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

import pyte

__all__ = ["Terminal", "terminal"]

DEADLINE = 25


class Terminal:
    """A program on a terminal of its own, and what can be seen there."""

    def __init__(self, command: list[str], rows: int, columns: int) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def text(self) -> list[str]:
        """All that was written and is not erased, also what has scrolled away."""
        gone = [
            "".join(row[column].data for column in range(self.screen.columns)).rstrip()
            for row in self.screen.history.top
        ]
        return [row for row in [*gone, *self.rows()] if row]

    def read(self, seconds: float) -> bool:
        """Take in what comes; False at the end."""
        if select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return False
            self.raw += data
            self._stream.feed(data)
            return bool(data)
        return True

    def wait(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            assert self.read(0.02) or condition(), "\n".join(self.text())
            assert time.monotonic() < end, "\n".join(self.text())

    def shows(self, pattern: str) -> bool:
        return re.search(pattern, "\n".join(self.rows()), re.MULTILINE) is not None

    def end(self) -> int:
        """Read to the end; the exit status."""
        end = time.monotonic() + DEADLINE
        while self.read(0.1):
            assert time.monotonic() < end, "\n".join(self.text())
            if self.process.poll() is not None and not select.select([self.master], [], [], 0)[0]:
                break
        return self.process.wait(5)

    @property
    def whole(self) -> bool:
        """Whether the terminal scrolls as a whole."""
        margins = self.screen.margins
        return margins is None or (margins.top, margins.bottom) == (0, self.screen.lines - 1)


@contextmanager
def terminal(
    tmp_path: Path,
    *arguments: str,
    rows: int = 24,
    columns: int = 100,
    source: str,
    shell: str | None = None,
) -> Iterator[Terminal]:
    path = tmp_path / "train.py"
    path.write_text(source)
    command = [sys.executable, str(path), *arguments]
    before = [] if shell is None else [sys.executable, "-c", shell]
    there = Terminal([*before, *command], rows, columns)
    try:
        yield there
    finally:
        if there.process.poll() is None:
            there.process.kill()
        there.process.wait()
        os.close(there.master)
