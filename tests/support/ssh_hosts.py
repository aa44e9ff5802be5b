"""Machines with a real sshd on each, reached by the ssh of this system, and drivers on the first.

``./scripts/test --ssh`` unpacks Debian's ``openssh-server`` into ``.sshd`` in the clone; nothing of
it is installed. Keys and configuration are the test's own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.driven_hosts import DrivenHosts, parent_of
from tests.support.namespaces import Host, network
from tests.support.stage import ROOT, Stage
from tests.support.waiting import until

__all__ = ["SshHosts", "hosts_on_network"]

UNPACKED = ROOT / ".sshd" / "unpacked"
# Root's sshd wants a user of this name, and its folder, for the part that has no rights yet.
_USER = "sshd:x:998:65534::/run/sshd:/usr/sbin/nologin\n"
_DAEMON = """
mount --bind "$1" /etc/passwd
mount -t tmpfs -o size=64k,mode=755 tmpfs "$2"
mkdir -p /run/sshd
shift 2
exec "$@"
"""
_CONFIGURATION = """\
Port 22
HostKey {folder}/host-key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
"""
_CLIENT = """\
Host *
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known-hosts
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
"""


class SshHosts(DrivenHosts):
    """The machines h0, h1 … and more names, if ``configure`` gives some."""

    def __init__(self, stage: Stage, hosts: list[Host]) -> None:
        super().__init__(stage, hosts)
        self.folder = stage.folder
        for name in ("host-key", "key"):
            keygen = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
            subprocess.run(keygen, check=True)
        key = (self.folder / "host-key.pub").read_text()
        known = [f"{name} {key}" for host in hosts for name in (host.name, host.address)]
        (self.folder / "known-hosts").write_text("".join(known))
        (self.folder / "sshd-config").write_text(_CONFIGURATION.format(folder=self.folder))
        self._accounts = Path("/etc/passwd").read_text() + _USER
        (self.folder / "passwd").write_text(self._accounts)
        self.small = self.folder / "small"
        """A disk of 64 KB on each host; on the driver's side an ordinary folder."""
        self.small.mkdir()
        self.configure()
        self.options = {
            "engine": "ssh", "hosts": [host.name for host in hosts], "ssh_options": self.words,
        }  # fmt: skip
        self._daemons: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def words(self) -> list[str]:
        """Words for ssh that take the configuration of this network."""
        return ["-F", str(self.folder / "ssh-config")]

    def configure(self, text: str = "") -> None:
        """Put this before what holds for all hosts in ssh's configuration."""
        client = _CLIENT.format(folder=self.folder)
        (self.folder / "ssh-config").write_text(f"{text}\n{client}")

    def account(self, home: Path | str, shell: str = "/bin/bash") -> None:
        """Give root this home and this login shell on all hosts; sshd looks at each login."""
        others = [e for e in self._accounts.splitlines() if not e.startswith("root:")]
        lines = [f"root:x:0:0:root:{home}:{shell}", *others]
        (self.folder / "passwd").write_text("\n".join(lines) + "\n")  # the file that is mounted

    def start(self, *indices: int) -> None:
        """Start sshd on these hosts, and wait until it answers."""
        libraries = ":".join(map(str, (UNPACKED / "usr/lib").glob("*-linux-gnu")))
        for index in indices:
            daemon = (
                "env", f"LD_LIBRARY_PATH={libraries}", str(UNPACKED / "usr/sbin/sshd"), "-D", "-e",
                "-f", str(self.folder / "sshd-config"),
            )  # fmt: skip
            mounts = str(self.folder / "passwd"), str(self.small)
            own = ("sh", "-euc", _DAEMON, "sh", *mounts, *daemon)
            command = self.hosts[index].command("unshare", "-m", *own)
            with open(self.folder / f"sshd-{index}", "ab") as log:
                self._daemons[index] = self.stage.start_command(
                    *command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        for index in indices:
            log_file = self.folder / f"sshd-{index}"
            until(lambda f=log_file: b"listening on" in f.read_bytes(), 30, log_file.read_text)

    def sshd(self, index: int) -> list[int]:
        """The processes of sshd on a host."""
        return [pid for pid, name in self.hosts[index].pids().items() if name == "sshd"]

    def sessions(self, index: int) -> list[int]:
        """The processes of sshd that have one connection each."""
        every = self.sshd(index)
        return [pid for pid in every if parent_of(pid) in every]

    def link(self, index: int, name: str) -> int:
        """The process of this name, "ssh" or "xmp-link", that leads from the first host here."""
        ssh = until(lambda: self._ssh(index), 30, lambda: f"ssh to {index}: {self}")
        return ssh if name == "ssh" else parent_of(ssh)

    def _ssh(self, index: int) -> int:
        pids = [pid for pid, each in self.hosts[0].pids().items() if each == "ssh"]
        return next((p for p in pids if f"\0{self.hosts[index].name}\0" in cmdline(p)), 0)

    def whole(self) -> None:
        """All hosts are connected, on all of them runs sshd, and nothing about them is odd."""
        self.account("/root")
        self.configure()
        for host in self.hosts:
            host.plug()
        self.start(*(i for i in range(len(self.hosts)) if not self.sshd(i)))


def cmdline(pid: int) -> str:
    """Its words, or nothing where it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@contextlib.contextmanager
def hosts_on_network(folder: Path, count: int = 2) -> Iterator[SshHosts]:
    """Machines of which each has an sshd. Needs to be root."""
    stage = Stage(folder)
    folder.chmod(0o755)
    with network(folder, count) as machines:
        try:
            hosts = SshHosts(stage, machines)
            path = f"{UNPACKED / 'usr/bin'}:{os.environ['PATH']}"
            hosts.env = {"PYTHONPATH": str(ROOT), "PATH": path}
            hosts.whole()
            yield hosts
        finally:
            stage.end()
