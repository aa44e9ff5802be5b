"""What a round leaves on the hosts of a Ray cluster: processes, files, what Ray has lent."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support import ray_observer
from tests.support.ray_hosts import RayCluster
from tests.support.stage import slowness

__all__ = ["Left"]

_TEMPORARY = "/run/tmp"
"""TMPDIR of each host, in a /run of its own."""
_FOLDERS = ("/dev/shm", _TEMPORARY)
_OF_RAY = ("ray::IDLE", "ray::Dashboard", "ray::RuntimeEnv")
"""Ray keeps workers for later, and starts its own agents with each raylet."""


class Left:
    """Compares the hosts with what they were before a round."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._observer: subprocess.Popen[str] | None = None
        self._pids: set[int] = set()
        self._files: set[str] = set()
        cluster.env["TMPDIR"] = _TEMPORARY
        for host in cluster.hosts:
            Path(f"/proc/{host.first}/root{_TEMPORARY}").mkdir()

    def begins(self) -> None:
        """What is there from now on was there before the round."""
        self._lent()
        self._pids = {pid for host in self._cluster.hosts for pid in host.pids()}
        self._files = self._all_files()

    def renewed(self, index: int) -> None:
        """Ray was started again on this host, with nothing else on it."""
        self._pids |= set(self._cluster.hosts[index].pids())

    def found(self, seconds: float) -> list[str]:
        """What is left so long after the end of the driver, longer on a slow machine."""
        start = time.monotonic()
        while left := [*self._processes(), *sorted(self._all_files() - self._files), *self._held()]:
            late = time.monotonic() - start
            if late > seconds and late > seconds * slowness():
                return [f"left {late:.2f} s later: {left}"]
        return []

    def _processes(self) -> list[str]:
        return [
            f"{host.name}/{pid} {name}"
            for host in self._cluster.hosts
            for pid, name in host.pids().items()
            if pid not in self._pids and not name.startswith(_OF_RAY)
        ]

    def _all_files(self) -> set[str]:
        found = set()
        for host in self._cluster.hosts:
            for folder in _FOLDERS:
                with contextlib.suppress(OSError):
                    names = os.listdir(f"/proc/{host.first}/root{folder}")
                    found |= {f"{host.name}:{folder}/{name}" for name in names}
        return found

    # --- Ray -------------------------------------------------------------------------------------

    def _held(self) -> list[str]:
        """What Ray has given to a launch and not got back."""
        said = self._lent()
        return [f"{name}: {value}" for name, value in said.items() if value]

    def _lent(self) -> dict[str, Any]:
        observer = self._observer
        if observer is None or observer.poll() is not None:
            self.close()
            observer = self._observer = self._started()
        assert observer.stdin is not None
        assert observer.stdout is not None
        observer.stdin.write("\n")
        observer.stdin.flush()
        for line in observer.stdout:
            if line.startswith("@"):  # Ray writes there, too
                said: dict[str, Any] = json.loads(line[1:])
                return said
        raise AssertionError(f"the observer has ended: {self._cluster}")

    def close(self) -> None:
        """End what asks Ray."""
        if self._observer is not None:
            self._observer.kill()
            self._observer.communicate()
            self._observer = None

    def _started(self) -> subprocess.Popen[str]:
        cluster = self._cluster
        command = cluster.hosts[0].command(
            sys.executable, ray_observer.__file__, folder=cluster.stage.folder
        )
        with open(cluster.stage.folder / "observer", "a") as errors:
            return cluster.stage.start_command(
                *command, env={**cluster.env, "RAY_ADDRESS": cluster.address},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
