"""Hosts that are namespaces, and drivers on the first of them, for launches over an engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support import driver_program
from tests.support.in_script import comm, is_alive, parent
from tests.support.namespaces import Host
from tests.support.stage import Stage, slowness
from tests.support.waiting import until

__all__ = ["GRACE", "DrivenHosts", "Driver", "parent_of"]

GRACE = 1.0


class DrivenHosts:
    """Machines of a network; drivers run on the first one."""

    options: dict[str, Any]
    """Options of each launch: the engine and its hosts."""

    def __init__(self, stage: Stage, hosts: list[Host]) -> None:
        self.stage, self.hosts = stage, hosts
        self.env: dict[str, str] = {}
        """Variables of drivers."""
        self._drivers: list[Driver] = []

    # --- processes of a host ---------------------------------------------------------------------

    def find(self, index: int, name: str) -> int:
        """Wait for the process of this name on a host ("raylet", "xmp-agent"); its pid."""
        return until(lambda: self._named(index, name), 30, lambda: f"{name} on {index}: {self}")

    def _named(self, index: int, name: str) -> int:
        found = [pid for pid, each in self.hosts[index].pids().items() if each == name]
        return next((pid for pid in found if parent_of(pid) not in found), 0)

    def left(self, seconds: float = 1.0) -> dict[str, str]:
        """The processes of xmp so long after the end of their driver, longer on a slow machine."""
        end = time.monotonic() + seconds
        while found := self.of_xmp():
            if time.monotonic() > end and time.monotonic() > end + seconds * (slowness() - 1):
                break
            time.sleep(0.01)
        return found

    def of_xmp(self) -> dict[str, str]:
        """The living processes of xmp on all hosts."""
        return {
            f"{host.name}/{pid}": name
            for host in self.hosts
            for pid, name in host.pids().items()
            if name.startswith("xmp-")
        }

    def replicas(self, index: int) -> list[int]:
        """The replicas on a host."""
        pids = self.hosts[index].pids()
        return [pid for pid, name in pids.items() if name.startswith("xmp-replica-")]

    # --- drivers ---------------------------------------------------------------------------------

    def driver(self, host: int = 0, **env: str) -> Driver:
        """A new driver on a host, which waits for launches."""
        started = Driver(self, host, len(self._drivers), env)
        self._drivers.append(started)
        return started

    def end_drivers(self) -> dict[str, str]:
        """End the drivers that are left; what is left of their launches then."""
        for driver in self._drivers:
            driver.end()
        return self.left(2.0)

    def __str__(self) -> str:
        """What is there, for a failure."""
        folder = self.stage.folder
        texts = [f"{p.name}: {p.read_text()[-3000:]}" for p in sorted(folder.glob("driver-*"))]
        pids = [f"{host.name}: {host.pids()}" for host in self.hosts]
        return "\n".join([*pids, str(sorted(p.name for p in folder.iterdir())), *texts])


class Driver:
    """A program on one host that launches what it is sent, one launch after the other."""

    def __init__(self, cluster: DrivenHosts, host: int, number: int, env: dict[str, str]) -> None:
        self.cluster, self.number = cluster, number
        self.folder = cluster.stage.folder
        self._launches = 0
        self._host = cluster.hosts[host]
        command = self._host.command(
            sys.executable,
            driver_program.__file__,
            str(self.folder),
            str(number),
            folder=self.folder,
        )
        with open(self.folder / f"driver-{number}", "w") as out:
            self.process = cluster.stage.start_command(
                *command, env={**cluster.env, **env},
                stdin=subprocess.PIPE, stdout=out, stderr=out,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the program on its host."""
        return until(self._pid, 30, lambda: f"the driver: {self.cluster}")

    def _pid(self) -> int:
        return next((p for p in self._host.pids() if parent_of(p) == self.process.pid), 0)

    def launch(self, function: str, /, **do: Any) -> Path:
        """Have it launch; the folder in which replicas leave their marks."""
        self._launches += 1
        folder = self.marks
        folder.mkdir()
        do.setdefault("runtime", "cpu")
        options = {"grace": GRACE, "nprocs": 2, **self.cluster.options, **do.pop("options", {})}
        order = {"folder": str(folder), "do": {"function": function, **do, "options": options}}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return folder

    @property
    def marks(self) -> Path:
        """The folder of the present launch."""
        return self.folder / f"launch-{self.number}-{self._launches}"

    def reached(self, *names: str, seconds: float = 90) -> None:
        """Wait for marks; fails when the launch ends before."""
        wanted = [self.marks / name for name in names]
        until(
            lambda: all(p.exists() for p in wanted) or (self.marks / "said").exists(),
            seconds, lambda: f"{names}: {self.cluster}",
        )  # fmt: skip
        assert all(path.exists() for path in wanted), f"{names}: {self.cluster}"

    def in_function(self, replicas: int = 4) -> None:
        """Wait until all replicas are in their function."""
        self.reached(*(f"in-fn-{rank}" for rank in range(replicas)))

    def wrote(self) -> str:
        """Standard output and error of the program so far."""
        return (self.folder / f"driver-{self.number}").read_text()

    def fault(self) -> int:
        """When the planned failure happened, in monotonic nanoseconds."""
        return int((self.marks / "fault").read_text())

    def said(self, seconds: float = 90) -> dict[str, Any]:
        """The results of the present launch, or its error, and when that was (``at``)."""
        path = self.marks / "said"
        until(
            lambda: path.exists() or self.process.poll() is not None,
            seconds, lambda: f"the end of the launch: {self.cluster}",
        )  # fmt: skip
        assert path.exists(), f"the driver ended with {self.process.returncode}: {self.cluster}"
        said: dict[str, Any] = json.loads(path.read_text())
        return said

    def results(self) -> Any:
        """The results of the present launch."""
        said = self.said()
        assert "results" in said, f"{said}\n{self.cluster}"
        return said["results"]

    def error(self) -> dict[str, Any]:
        """The error of the present launch, with its time in ``at``."""
        said = self.said()
        assert "error" in said, f"{said}\n{self.cluster}"
        return {**said["error"], "at": said["at"]}

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def finish(self, seconds: float = 30) -> int:
        """Have it end, as a program does that has no more to launch; its exit code."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        return self.process.wait(seconds)

    def end(self) -> None:
        """Kill what is left of it."""
        if self.process.poll() is None:
            for pid in [p for p in self._host.pids() if parent_of(p) == self.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.kill()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self.process.wait(10)


def parent_of(pid: int) -> int:
    """0 where it has ended."""
    try:
        return parent(pid) if is_alive(pid) and comm(pid) else 0
    except OSError:
        return 0
