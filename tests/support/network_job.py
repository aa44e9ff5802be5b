"""One launch over the hosts of a network, placed by hand: a launcher on each of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import network_program
from tests.support.in_script import state
from tests.support.namespaces import Host, network
from tests.support.stage import Stage, slowness
from tests.support.waiting import until

__all__ = ["GRACE", "PROGRAM", "NetworkJob", "job_on_network"]

GRACE = 1.0
PROGRAM = network_program.__file__
_PORT = "29500"


class NetworkJob:
    """The launchers of a launch; 2 replicas on each host."""

    def __init__(self, stage: Stage, hosts: list[Host], **do: Any) -> None:
        self.stage, self.hosts = stage, hosts
        options = {"grace": GRACE, **do.pop("options", {})}
        self._do = json.dumps({**do, "options": options})
        self.launchers: dict[int, subprocess.Popen[str]] = {}

    def start(self, *indices: int) -> None:
        """Start the launcher of these hosts, of all by default."""
        for index in indices or range(len(self.hosts)):
            env = {
                "NNODES": str(len(self.hosts)), "NODE_RANK": str(index),
                "MASTER_ADDR": self.hosts[0].name, "MASTER_PORT": _PORT,
            }  # fmt: skip
            program = (sys.executable, PROGRAM, self._do)
            command = self.hosts[index].command(*program, folder=self.stage.folder)
            with open(self.stage.folder / f"output-{index}", "w") as out:
                self.launchers[index] = self.stage.start_command(
                    *command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )

    # --- processes of a host ---------------------------------------------------------------------

    def find(self, index: int, what: str) -> int:
        """Wait for a host's "launcher", "carrier", "supervisor" or "replica-RANK"; its pid."""
        return until(lambda: self._find(index, what), 30, lambda: f"{what} of {index}: {self}")

    def _find(self, index: int, what: str) -> int:
        pids = self.hosts[index].pids()
        if what == "launcher":
            above = self.launchers[index].pid
            return next((pid for pid in pids if _parent(pid) == above), 0)
        if what == "carrier":
            return next((pid for pid in pids if b"xmp._hosts.carrier" in _command(pid)), 0)
        return next((pid for pid, name in pids.items() if name == f"xmp-{what}"), 0)

    def kill(self, index: int, what: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.find(index, what), number)

    def stop(self, index: int) -> None:
        """Stop a host's launcher; nsenter, which waits for it, stops with it."""
        self.kill(index, "launcher", signal.SIGSTOP)
        until(lambda: state(self.launchers[index].pid) == "T", 10, "nsenter has stopped too")

    def resume(self, index: int) -> None:
        """Undo ``stop``: nsenter has the launcher go on, too."""
        self.launchers[index].send_signal(signal.SIGCONT)

    # --- what is seen ----------------------------------------------------------------------------

    def reached(self, *names: str, seconds: float = 60) -> None:
        """Wait for files of these names; fails when a launcher ends before."""
        wanted = [self.stage.folder / name for name in names]
        until(
            lambda: all(path.exists() for path in wanted) or self._has_ended(),
            seconds, lambda: f"{names}: {self}",
        )  # fmt: skip
        assert all(path.exists() for path in wanted), f"{names}: {self}"

    def in_function(self) -> None:
        """Wait until the replicas of all hosts are in their function."""
        self.reached(*(f"in-fn-{rank}" for rank in range(2 * len(self.hosts))))

    def _has_ended(self) -> bool:
        return any(launcher.poll() is not None for launcher in self.launchers.values())

    def fault(self) -> int:
        """When it happened, in monotonic nanoseconds."""
        return int((self.stage.folder / "fault").read_text())

    def said(self, index: int, seconds: float = 60) -> dict[str, Any]:
        """What a host's launcher said in the end."""
        launcher = self.launchers[index]
        until(lambda: launcher.poll() is not None, seconds, lambda: f"host {index} ends: {self}")
        code = launcher.returncode
        path = self.stage.folder / f"said-{index}"
        assert path.exists(), f"host {index} ended with {code}: {self}"
        said: dict[str, Any] = json.loads(path.read_text())
        assert code == (1 if "error" in said else 0), f"host {index} ended with {code}: {self}"
        return said

    def errors(self, *indices: int) -> list[dict[str, Any]]:
        """The errors of these hosts, of all by default, with the time in ``at``."""
        found = []
        for index in indices or range(len(self.hosts)):
            said = self.said(index)
            assert "error" in said, f"host {index} has results: {said['results']}"
            found.append({**said["error"], "at": said["at"]})
        return found

    def left(self, seconds: float = 1.0) -> dict[str, str]:
        """The processes that are on a host so long after the end, longer on a slow machine."""
        end = time.monotonic() + seconds
        while found := {
            f"{h.name}/{pid}": name for h in self.hosts for pid, name in h.pids().items()
        }:
            if time.monotonic() > end and time.monotonic() > end + seconds * (slowness() - 1):
                break
            time.sleep(0.01)
        return found

    def __str__(self) -> str:
        """What is there, for a failure."""
        folder = self.stage.folder
        texts = [f"{path.name}: {path.read_text()}" for path in sorted(folder.glob("output-*"))]
        pids = [f"{host.name}: {host.pids()}" for host in self.hosts]
        return "\n".join([*pids, str(sorted(p.name for p in folder.iterdir())), *texts])


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def job_on_network(folder: Path, hosts: int = 2, **do: Any) -> Iterator[NetworkJob]:
    """A launch over that many hosts, not started yet; ``do`` has the fields of ``Do``."""
    stage = Stage(folder)
    with network(folder, hosts) as machines:
        try:
            yield NetworkJob(stage, machines, **do)
        finally:
            stage.end()
