"""Hosts of one network on this machine, each with its name, address, processes, shared memory.

A host is a set of namespaces of the kernel, held by the host's process 1; the switch between them
is a bridge in a namespace of its own: nothing has a name that two runs could both want. When the
process that made them ends, however it ends, process 1 of each host sees the end of its standard
input and ends too; the kernel then ends the host's other processes and takes the links down.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.in_script import comm, is_alive, parent
from tests.support.waiting import until

__all__ = ["Host", "network"]

# Whatever a host's process 1 inherits is reaped by the kernel where SIGCHLD is ignored.
_FIRST = """
import signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if sys.argv[1:]:
    socket.sethostname(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""
_OWN = ("--net", "--uts", "--ipc", "--mount", "--pid")
_MOUNTS = """
mount --bind "$1" /etc/hosts
mount -t tmpfs none /dev/shm
mount -t tmpfs none /run
shift
exec "$@"
"""


class Host:
    """A machine of the network."""

    def __init__(self, name: str, address: str, first: int, switch: int) -> None:
        self.name, self.address = name, address
        self.first = first
        """Its process 1, as this machine numbers it."""
        self._switch = switch

    @property
    def _port(self) -> str:
        return f"to-{self.name}"

    def command(self, *argv: str, folder: Path | None = None) -> list[str]:
        """The command that runs a program on this host, in the folder where the caller is.

        What it starts is a process of this machine, the parent of the one on the host.
        """
        enter = ["nsenter", f"--target={self.first}", *_OWN, f"--wd={folder or Path.cwd()}"]
        return [*enter, "--", *argv]

    def pids(self) -> dict[int, str]:
        """The living processes of this host and their names, but for its process 1."""
        with contextlib.suppress(OSError):
            own = os.readlink(f"/proc/{self.first}/ns/pid")
            return {pid: comm(pid) for pid in _processes_in(own) if pid != self.first}
        return {}

    def cut(self) -> None:
        """Cut this host off: the switch drops what comes from it and for it, and says nothing."""
        _ip(self._switch, f"link set {self._port} nomaster")

    def unplug(self) -> None:
        """Pull the cable: this host's own kernel sees that the link is down, the others' do not."""
        _ip(self._switch, f"link set {self._port} down")

    def plug(self) -> None:
        """Undo ``cut`` and ``unplug``."""
        _ip(self._switch, f"link set {self._port} master switch up")

    def close(self, ports: str) -> None:
        """Drop what this host sends to these TCP ports ("20000-20010"), as a firewall does.

        The kernel gives it to a device whose other end is connected to nothing.
        """
        _ip(
            self.first, "link add hole type veth peer name bottom", "link set hole up arp off",
            "link set bottom up", "route add default dev hole table 91",
            f"rule add ipproto tcp dport {ports} table 91 priority 91",
        )  # fmt: skip

    def open(self) -> None:
        """Undo ``close``."""
        _ip(self.first, "link delete hole", "rule delete priority 91")

    def lose_power(self) -> None:
        """End the machine as a loss of power does: no process sends another word."""
        self.cut()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, 9)
        until(lambda: not is_alive(self.first), 10, f"the end of {self.name}")


def _processes_in(namespace: str) -> Iterator[int]:
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace and is_alive(pid):
                yield pid


@contextlib.contextmanager
def network(folder: Path, count: int = 2, domain: str = "") -> Iterator[list[Host]]:
    """Make ``count`` hosts h0, h1 …, 10.91.0.1, 10.91.0.2 …, whose names all of them resolve.

    Whatever runs on a host when the block ends is killed. Needs to be root.
    """
    names = [f"h{index}{domain}" for index in range(count)]
    addresses = [f"10.91.0.{index + 1}" for index in range(count)]
    hosts_file = folder / "hosts-of-the-network"
    lines = [f"{address} {name}\n" for address, name in zip(addresses, names)]
    hosts_file.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(_held("--net"))
        _ip(switch, "link add switch type bridge", "link set switch up")
        yield [
            _connected(stack.enter_context(_held(*_OWN, name=name, etc=hosts_file)), switch, *each)
            for name, *each in zip(names, names, addresses)
        ]


def _connected(first: int, switch: int, name: str, address: str) -> Host:
    host = Host(name, address, first, switch)
    _ip(switch, f"link add {host._port} type veth peer name eth0 netns {first}")
    _ip(first, "link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up")
    host.plug()
    return host


@contextlib.contextmanager
def _held(*own: str, name: str = "", etc: Path | None = None) -> Iterator[int]:
    """Namespaces that a process holds; its pid."""
    hold = [sys.executable, "-IS", "-c", _FIRST, *filter(None, [name])]
    if etc is not None:
        hold = ["sh", "-euc", _MOUNTS, "sh", str(etc), *hold]
    fork = ("--fork", "--mount-proc", "--kill-child") if "--pid" in own else ()
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    holder = subprocess.Popen(["unshare", *own, *fork, *hold], text=True, **pipes)
    with holder:  # at the end its standard input is closed, and it is waited for
        assert holder.stdout is not None
        assert holder.stderr is not None
        assert holder.stdout.readline() == "ready\n", holder.stderr.read()
        yield holder.pid if not fork else _child_of(holder.pid)


def _child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(child for child in map(int, children) if parent(child) == pid)


def _ip(namespace_of: int, *commands: str) -> None:
    """Run commands of ``ip`` in the network of a process."""
    subprocess.run(
        ["nsenter", f"--target={namespace_of}", "--net", "--", "ip", "-batch", "-"],
        input="\n".join(commands), text=True, check=True,
    )  # fmt: skip
