"""A real Slurm on the hosts of a network: a controller, a daemon on each host, munge.

``./scripts/test --slurm`` unpacks Debian's packages into ``.slurm`` in the clone; nothing of them
is installed. The daemons run as root, on folders of the test.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.namespaces import Host, network
from tests.support.stage import ROOT
from tests.support.waiting import until

__all__ = ["Slurm", "slurm"]

UNPACKED = ROOT / ".slurm" / "unpacked"
_SOCKET = "/run/munge.socket"  # each host has its own /run
# A container has no control group to give away. With proctrack/pgid a signal reaches the process
# group of the task: the launcher. So it is with proctrack/cgroup, which signals children of
# slurmstepd alone unless it is SIGKILL (Slurm 22.05, proctrack_cgroup.c); with proctrack/linuxproc
# each process of a step gets SIGTERM, replicas too, and they die of it.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={first.name}({first.address})
SlurmUser=root
AuthInfo=socket={socket}
CredType=cred/munge
PluginDir={plugins}
PlugStackConfig=/dev/null
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
MpiDefault=none
SlurmdParameters=config_overrides
KillWait={kill_wait}
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """The cluster; its commands run on the first host."""

    KILL_WAIT = 30
    """Seconds from SIGTERM to SIGKILL, as Slurm has it by default."""

    def __init__(self, folder: Path, hosts: list[Host]) -> None:
        self.folder, self.hosts = folder, hosts
        self._libraries = next((UNPACKED / "usr/lib").glob("*/slurm-wlm")).parent
        self._daemons: list[subprocess.Popen[bytes]] = []
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(self._configuration())
        self._key = folder / "munge.key"
        self._key.touch(0o600)
        self._key.write_bytes(secrets.token_bytes(128))

    def _configuration(self) -> str:
        nodes = [f"NodeName={h.name} NodeAddr={h.address} CPUs=2" for h in self.hosts]
        return _CONFIGURATION.format(
            first=self.hosts[0], socket=_SOCKET, plugins=self._libraries / "slurm-wlm",
            folder=self.folder, kill_wait=self.KILL_WAIT, nodes="\n".join(nodes),
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """The environment in which Slurm's commands find their libraries and their cluster."""
        return {
            **os.environ,
            "PATH": f"{UNPACKED / 'usr/bin'}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{self._libraries}:{self._libraries / 'slurm-wlm'}",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }

    # --- daemons --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemons, and wait until all nodes are idle."""
        for host in self.hosts:
            self._daemon(
                host, "munged", "--foreground", "--force", f"--socket={_SOCKET}",
                f"--key-file={self._key}", "--pid-file=/run/munged.pid",
                "--log-file=/run/munged.log", "--seed-file=/run/munged.seed",
            )  # fmt: skip
        until(lambda: self._are_up("munge", "--no-input", f"--socket={_SOCKET}"), 10, self.logs)
        self._daemon(self.hosts[0], "slurmctld", "-D")
        for host in self.hosts:
            self._daemon(host, "slurmd", "-D", "-N", host.name, "-d", _program("slurmstepd"))
        until(self._are_idle, 30, self.logs)

    def _daemon(self, host: Host, name: str, *arguments: str) -> None:
        command = host.command(_program(name), *arguments)
        with open(self.folder / f"{name}-{host.name}.log", "wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    command,
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _are_up(self, *command: str) -> bool:
        return all(self.run(*command, host=host).returncode == 0 for host in self.hosts)

    def _are_idle(self) -> bool:
        assert all(daemon.poll() is None for daemon in self._daemons), self.logs()
        said = self.run("sinfo", "--noheader", "--Node", "--format=%t").stdout.split()
        return said == ["idle"] * len(self.hosts)

    def logs(self) -> str:
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in paths)

    def end(self) -> None:
        """The hosts are gone, and with them what runs there."""
        for daemon in self._daemons:
            daemon.wait(10)

    # --- commands -------------------------------------------------------------------------------

    def command(
        self, *argv: str, folder: Path | None = None, host: Host | None = None
    ) -> subprocess.Popen[str]:
        """Start a command of Slurm's; its output is a pipe."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        return subprocess.Popen(
            (host or self.hosts[0]).command(*argv, folder=folder), text=True,
            env=self.environment(), stderr=subprocess.STDOUT, **streams,
        )  # fmt: skip

    def run(
        self,
        *argv: str,
        folder: Path | None = None,
        host: Host | None = None,
        seconds: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's to its end."""
        process = self.command(*argv, folder=folder, host=host)
        out, _ = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(argv, process.returncode, out)

    def left(self) -> dict[str, str]:
        """The processes on the hosts that are neither daemons nor of a step that is ending."""
        own = ("munged", "slurm")
        return {
            f"{host.name}/{pid}": name
            for host in self.hosts
            for pid, name in host.pids().items()
            if not name.startswith(own)
        }


def _program(name: str) -> str:
    """A daemon of the unpacked packages: Debian's ``slurmd`` is a link to ``slurmd-wlm``."""
    found = sorted((UNPACKED / "usr/sbin").glob(f"{name}*"))
    assert found, f"no {name} in {UNPACKED}: ./scripts/test --slurm unpacks it"
    return str(found[0])


@contextmanager
def slurm(folder: Path, hosts: int = 2) -> Iterator[Slurm]:
    """A cluster whose nodes are idle."""
    assert UNPACKED.is_dir(), f"no {UNPACKED}: ./scripts/test --slurm makes it"
    cluster = None
    try:
        with network(folder, hosts) as machines:
            cluster = Slurm(folder, machines)
            cluster.start()
            yield cluster
    finally:
        if cluster is not None:
            cluster.end()
