"""A terminal with somebody at it: what programs show there is read, what is typed reaches them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from typing import Any

from stages import Stage

__all__ = ["CTRL_C", "CTRL_D", "CTRL_Z", "Screen"]

CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"
# What a line editor sends to paint: colours, "clear to the end of the line", bracketed paste.
_PAINT = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


class Screen:
    """A pseudo-terminal, the controlling one of the program that is started in it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._master, self._slave = pty.openpty()
        self.modes = termios.tcgetattr(self._slave)
        self._seen = 0
        self._programs: list[subprocess.Popen[str]] = []
        self.text = ""
        """Everything that was shown, without its paint."""

    def start(self, source: str, *argv: str, **options: Any) -> subprocess.Popen[str]:
        """Start a script with all its streams here, unless ``options`` say otherwise."""
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), self._slave)
        streams.update(preexec_fn=self._take_terminal, **options)
        return self.stage.start(source, *argv, **streams)

    def run(self, *command: str) -> subprocess.Popen[str]:
        """Start any program here."""
        program = subprocess.Popen(
            command, stdin=self._slave, stdout=self._slave, stderr=self._slave, text=True,
            env=self.stage.environment(), cwd=self.stage.folder,
            start_new_session=True, preexec_fn=self._take_terminal,
        )  # fmt: skip
        self._programs.append(program)
        return program

    def _take_terminal(self) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)

    def see(self, wanted: str, seconds: float = 30) -> str:
        """Wait until this appears behind what was seen last; returns what came before it."""
        shown = self.sees(wanted, seconds)
        assert shown is not None, (
            f"not within {seconds} s: {wanted!r} in\n{self.text[self._seen :]}"
        )
        return shown

    def sees(self, wanted: str, seconds: float) -> str | None:
        """The same, or None when it does not appear."""
        end = time.monotonic() + seconds
        while (place := self.text.find(wanted, self._seen)) < 0:
            left = end - time.monotonic()
            if left <= 0:
                return None
            if select.select([self._master], [], [], min(left, 0.1))[0]:
                self.text += _PAINT.sub("", os.read(self._master, 4096).decode(errors="replace"))
        before = self.text[self._seen : place]
        self._seen = place + len(wanted)
        return before

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._master, keys.encode())

    def answer(self, prompt: str, line: str) -> str:
        """Type a line at a prompt; returns what was shown before the prompt."""
        before = self.see(prompt)
        self.type(f"{line}\n")
        return before

    def modes_now(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def foreground(self) -> int:
        """The group in the foreground, as seen from the other side."""
        found = fcntl.ioctl(self._master, termios.TIOCGPGRP, bytes(4))
        return int.from_bytes(found, "little")

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.wait(5)
        os.close(self._master)
        os.close(self._slave)
