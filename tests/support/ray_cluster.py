"""A real Ray cluster of several nodes on this machine, each a `ray start` of a stage."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.support.stage import Stage
from tests.support.waiting import until

__all__ = ["ENV", "LIGHT", "RayCluster", "cluster_of"]

LIGHT = {
    # Or the first driver has the head start a worker for each processor, and uses one of them.
    "RAY_prestart_worker_first_driver": "0",
    # Or workers, and what they start, have niceness 15: beside another lane they hardly run.
    "RAY_worker_niceness": "0",
}
"""Settings of clusters that share two cores with other tests."""
ENV = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # or Ray kills actors where other programs need memory
    # Ray's log monitors list their folder 10 times a second (ray 2.60, _private/log_monitor.py): a
    # fifth of what the lane computes. With more files than this it is every half second.
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    **LIGHT,
}
"""Of clusters and drivers of tests."""
_STORE = 120_000_000
_PATIENCE = 60
"""Seconds until a node is up; 3 on an idle machine."""


class RayCluster:
    """Nodes at 127.0.0.2, 127.0.0.3 and so on; everything of them ends with the stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        # The paths of sockets have 107 bytes at most, and those of pytest's folders are long.
        self.folder = Path(tempfile.mkdtemp(prefix="xr", dir="/tmp"))
        self.port = _free_port()
        self.address = f"127.0.0.2:{self.port}"
        self.nodes: list[subprocess.Popen[str]] = []

    @property
    def env(self) -> dict[str, str]:
        """For drivers: Ray finds this cluster by them, and no other."""
        return {**ENV, "RAY_ADDRESS": self.address, "RAY_TMPDIR": str(self.folder)}

    def add(
        self,
        cpus: int = 2,
        env: dict[str, str] | None = None,
        resources: dict[str, float] | None = None,
        options: tuple[str, ...] = (),
        logs: bool = False,
        **how: Any,
    ) -> subprocess.Popen[str]:
        """Start another node; ``how`` are options of Popen.

        ``logs``: drivers can have what Ray's workers write there, which takes one process more.
        """
        index = len(self.nodes)
        where = ["--head", f"--port={self.port}", "--include-dashboard=false"]
        if index:
            where = [f"--address={self.address}"]
        log = self.folder / f"node{index}.log"
        with open(log, "w") as out:
            node = self.stage.start_command(
                sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *where,
                f"--node-ip-address=127.0.0.{2 + index}", f"--num-cpus={cpus}",
                f"--object-store-memory={_STORE}", f"--temp-dir={self.folder / f't{index}'}",
                f"--resources={json.dumps(resources or {})}", "--disable-usage-stats",
                f"--include-log-monitor={str(logs).lower()}",
                "--min-worker-port=0", "--max-worker-port=0", *options,
                env={**ENV, "RAY_TMPDIR": str(self.folder), **(env or {})},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, **how,
            )  # fmt: skip
        self.nodes.append(node)
        until(
            lambda: "Ray runtime started" in log.read_text() or node.poll() is not None,
            _PATIENCE, log.read_text,
        )  # fmt: skip
        assert node.poll() is None, log.read_text()
        return node

    def close(self) -> None:
        """End the nodes, with all that runs on them."""
        below = [each for node in self.nodes for each in _below(node.pid)]
        self.stage.end()
        for each in below:  # Ray's agents write their titles over the variables that name a stage
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(below, 5)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def cluster_of(folder: Path, *nodes: dict[str, Any]) -> Iterator[RayCluster]:
    """A cluster with these nodes: for each the options of ``RayCluster.add``."""
    cluster = RayCluster(Stage(folder))
    try:
        for options in nodes:
            cluster.add(**options)
        yield cluster
    finally:
        cluster.close()


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.2", 0))
        return int(found.getsockname()[1])
