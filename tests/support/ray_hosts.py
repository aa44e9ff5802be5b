"""A Ray cluster of hosts that are namespaces, and drivers on its first host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.driven_hosts import DrivenHosts, Driver
from tests.support.in_script import parent
from tests.support.namespaces import Host, network
from tests.support.ray_cluster import LIGHT
from tests.support.stage import Stage

__all__ = ["CORES", "RAY", "RayCluster", "cluster_on_network"]

CORES = 4
"""That each host says it has."""
RAY = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    **LIGHT,
}
PORT = 6379
_TEMPORARY = "/run/ray"
"""Each host has a /run of its own, in memory."""


class RayCluster(DrivenHosts):
    """Hosts, on which Ray runs or not; the first one is the head, and has the drivers."""

    def __init__(self, stage: Stage, hosts: list[Host]) -> None:
        super().__init__(stage, hosts)
        self.env = dict(RAY)
        self.options = {"engine": "ray", "hosts": 2}

    @property
    def address(self) -> str:
        return f"{self.hosts[0].address}:{PORT}"

    def driver(self, host: int = 0, **env: str) -> Driver:
        return super().driver(host, **{"RAY_ADDRESS": self.address, **env})

    # --- Ray on a host ---------------------------------------------------------------------------

    def start(self, *indices: int) -> None:
        """Start Ray on these hosts; on the head before the others."""
        if 0 in indices:
            self._started([0])
        others = [index for index in indices if index]
        if others:
            self._started(others)

    def _started(self, indices: list[int]) -> None:
        ray = Path(sys.executable).parent / "ray"
        started = []
        for index in indices:
            host = self.hosts[index]
            own = ("--head", f"--port={PORT}", "--include-dashboard=false")
            command = host.command(
                str(ray), "start", *(own if index == 0 else [f"--address={self.address}"]),
                f"--node-ip-address={host.address}", f"--num-cpus={CORES}", "--num-gpus=0",
                "--object-store-memory=150000000", f"--temp-dir={_TEMPORARY}",
                "--include-log-monitor=false",
                folder=self.stage.folder,
            )  # fmt: skip
            with open(self.stage.folder / f"ray-start-{index}", "w") as out:
                started.append(
                    self.stage.start_command(
                        *command, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                    )
                )
        for index, each in zip(indices, started):
            text = self.stage.folder / f"ray-start-{index}"
            assert each.wait(90) == 0, text.read_text()

    def runs(self, index: int) -> bool:
        """Whether a raylet is on this host."""
        return "raylet" in self.hosts[index].pids().values()

    def stop(self, index: int) -> None:
        """End all processes of a host."""
        for _ in range(200):
            left = self.hosts[index].pids()
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)  # until the kernel has ended them
        raise AssertionError(left)

    def make_whole(self, *indices: int) -> None:
        """Ray runs on these hosts and on no other one, and all are connected."""
        for host in self.hosts:
            host.plug()
        wrong = [i for i in range(len(self.hosts)) if self.runs(i) != (i in indices)]
        if 0 in wrong:  # without its head the cluster is another one
            wrong = list(range(len(self.hosts)))
        for index in wrong:
            self.stop(index)
        if again := [index for index in indices if index in wrong]:
            self.start(*again)

    def actor(self, index: int) -> int:
        """The actor of xmp on a host: above ``xmp-host``, which is above the agent."""
        return parent(parent(self.find(index, "xmp-agent")))


@contextlib.contextmanager
def cluster_on_network(folder: Path, hosts: int = 2) -> Iterator[RayCluster]:
    """A cluster of that many hosts, on none of which Ray runs yet. Needs to be root."""
    stage = Stage(folder)
    with network(folder, hosts) as machines:
        try:
            yield RayCluster(stage, machines)
        finally:
            stage.end()
