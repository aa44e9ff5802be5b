"""Launchers on several hosts, all of which this machine plays: 127.0.0.2, 127.0.0.3 and up."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

from tests.support.stage import Outcome, Stage

__all__ = ["Placed", "said_of"]


class Placed:
    """The launchers of one job, each a process of its own; host 0 is 127.0.0.2."""

    ADDRESS = "127.0.0.2"

    def __init__(self, stage: Stage, hosts: int = 2) -> None:
        self.stage, self.hosts = stage, hosts
        self.port = _free_port()
        self.launchers: list[subprocess.Popen[str]] = []

    def variables(self, index: int) -> dict[str, str]:
        """Those by which a launcher knows its host."""
        return {
            "NNODES": str(self.hosts), "NODE_RANK": str(index), "MASTER_ADDR": self.ADDRESS,
            "MASTER_PORT": str(self.port), "FOLDER": str(self.stage.folder),
        }  # fmt: skip

    def program(
        self, source: str, *argv: str, index: int, env: dict[str, str] | None = None, **how: Any
    ) -> subprocess.Popen[str]:
        """Start a program on one host."""
        variables = {**self.variables(index), **(env or {})}
        started = self.stage.start(source, *argv, env=variables, **how)
        self.launchers.append(started)
        return started

    def everywhere(self, source: str, *argv: str, **how: Any) -> list[Outcome]:
        """Run a program on every host to its end."""
        for index in range(self.hosts):
            self.program(source, *argv, index=index, **how)
        return self.ended()

    def command(self, index: int, *words: str, env: dict[str, str] | None = None) -> None:
        """Start ``xmp`` with these words on one host, without variables of the job."""
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        variables = {"FOLDER": str(self.stage.folder), **(env or {})}
        run = (sys.executable, "-m", "xmp", *words)
        self.launchers.append(self.stage.start_command(*run, env=variables, **pipes))

    def ended(self, timeout: float = 60) -> list[Outcome]:
        """How each launcher ended; nothing of any is left."""
        found = [self.stage.outcome(launcher, timeout) for launcher in self.launchers]
        self.stage.gone()
        return found

    def said(self, timeout: float = 60) -> list[Any]:
        """The last line of each launcher, as JSON."""
        return [said_of(each) for each in self.ended(timeout)]

    def in_function(self, *ranks: int) -> None:
        """Wait until these replicas have touched ``in-fn-<rank>``."""
        self.stage.reached(self.launchers[0], *(f"in-fn-{rank}" for rank in ranks))


def said_of(outcome: Outcome) -> Any:
    """What a launcher wrote last, as JSON."""
    assert outcome.out.strip(), outcome.err
    return json.loads(outcome.out.splitlines()[-1])


def _free_port() -> int:
    """A port that is free, as is the one 1000 above it, where the launchers meet."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((Placed.ADDRESS, 0))
            port: int = first.getsockname()[1]
            try:
                second.bind((Placed.ADDRESS, port + 1000 if port + 1000 < 65536 else port - 1000))
            except OSError:
                continue
            return port
