"""The address and the interface by which a host faces host 0, and names that lead nowhere."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.support.network_names import silent_names
from xmp._hosts import own_address
from xmp._hosts.own_address import facing
from xmp._os.ports import lease
from xmp._words.errors import PortError, StartError
from xmp._words.host_words import HostMeeting
from xmp._words.types import HostFacts, PortNeed

__all__ = ["silent_names"]

KNOWN = HostFacts(hostname="h", address="198.51.100.7", env={})


def meeting(address: str, index: int = 1) -> HostMeeting:
    return HostMeeting(index, 2, address, 29500)


def own_ip() -> tuple[str, str]:
    """An address of this machine that is not loopback, and its interface."""
    for name, its in psutil.net_if_addrs().items():
        for each in its:
            if each.family == socket.AF_INET and not each.address.startswith("127."):
                return each.address, name
    return "127.0.0.3", "lo"


@pytest.mark.parametrize("index", [0, 1])
def test_the_interface_of_the_route(index: int) -> None:
    address, interface = own_ip()
    found = facing(KNOWN, meeting(address, index), 5)
    assert (found.address, found.interface) == (address, interface)


@pytest.mark.parametrize("address", ["127.0.0.2", "127.1.2.3"])
def test_one_machine_that_plays_several(address: str) -> None:
    found = facing(KNOWN, meeting(address), 5)
    assert found.interface == "lo"
    assert found.address.startswith("127.")


def test_an_address_of_ipv6() -> None:
    if not any(each.address == "::1" for its in psutil.net_if_addrs().values() for each in its):
        with pytest.raises(OSError):
            socket.create_server(("::1", 0), family=socket.AF_INET6)
        return
    assert facing(KNOWN, meeting("::1"), 5).interface == "lo"


def test_a_name_that_other_hosts_do_not_know_yet() -> None:
    assert facing(KNOWN, meeting("no-such-host.invalid"), 60) is KNOWN


def test_host_0_waits_for_its_own_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    real = socket.getaddrinfo

    def answers(name: str, *rest: object, **more: object) -> object:
        asked.append(name)
        if len(asked) < 3:
            raise socket.gaierror(-2, "Name or service not known")
        return real("127.0.0.2", *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    monkeypatch.setattr(own_address, "PAUSE_SECONDS", 0.01)
    found = facing(KNOWN, meeting("pod-0.svc", 0), 60)
    assert found.interface == "lo"
    assert asked == ["pod-0.svc"] * 3
    assert capsys.readouterr().err.count("pod-0.svc, the name of host 0") == 1


@pytest.mark.parametrize(("waits", "seconds"), [(0.0, 60.0), (60.0, 0.1)])
def test_host_0_whose_name_is_never_known(
    monkeypatch: pytest.MonkeyPatch, waits: float, seconds: float
) -> None:
    """Its patience ends, or the launch's limit comes first."""
    monkeypatch.setattr(own_address, "NAME_SECONDS", waits)
    name = "no-such-host.invalid"
    assert facing(KNOWN, meeting(name, 0), seconds) is KNOWN
    with pytest.raises(PortError, match=f"'?{name}.* cannot be bound: .*Set MASTER_ADDR to this"):
        lease([PortNeed("store", "listen", name, 29500)])


@pytest.mark.parametrize("index", [0, 1])
def test_a_name_service_that_does_not_answer(silent_names: None, index: int) -> None:
    with pytest.raises(StartError, match=r"not answered for 0\.1 s .* 'pod-0\.svc'"):
        facing(KNOWN, meeting("pod-0.svc", index), 0.1)


# --- other names and networks --------------------------------------------------------------------

PROGRAM = """
    import os, sys, xmp

    def where(rank):
        return os.environ["GLOO_SOCKET_IFNAME"], os.environ["MASTER_ADDR"], xmp.world_size()

    def meets(rank):
        return os.environ["GLOO_SOCKET_IFNAME"], float(xmp.all_reduce(1.0))

    if __name__ == "__main__":
        function = globals()[sys.argv[1]]
        try:
            print(list(xmp.spawn(function, nprocs=1, runtime="cpu", start_timeout=40)), flush=True)
        except xmp.XmpError as error:
            print(type(error).__name__, error, flush=True)
"""


def in_namespace(folder: Path, hosts: str, *lines: str) -> list[str]:
    """What a shell prints in namespaces of its own, with this /etc/hosts."""
    (folder / "hosts").write_text(hosts)
    (folder / "nsswitch.conf").write_text("hosts: files\n")
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    setup = [
        "set -e",
        *(f"mount --bind {folder}/{name} /etc/{name}" for name in ("hosts", "nsswitch.conf")),
        "ip link set lo up",
        *lines,
    ]
    command = ["unshare", "--net", "--mount", "--uts", "sh", "-c", "\n".join(setup)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def network(name: str, address: str) -> tuple[str, ...]:
    return (
        f"ip link add {name} type veth peer name {name}-peer",
        f"ip addr add dev {name} {address}",
        f"ip link set {name}-peer up; ip link set {name} up",
    )


SILENT = """
import socket, subprocess, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.9", 53))
subprocess.run([sys.executable, "program.py", "where"])
"""


@pytest.mark.hosts
@pytest.mark.netns
@pytest.mark.parametrize(("index", "limit"), [(0, "start_timeout"), (1, "timeout")])
def test_the_limits_of_a_launch_hold_while_a_name_is_looked_up(
    tmp_path: Path, index: int, limit: str
) -> None:
    """The name server never answers, for which the C library would wait for 10 minutes."""
    (tmp_path / "silent.py").write_text(SILENT)
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.9\noptions timeout:30 attempts:5\n")
    [line] = in_namespace(
        tmp_path,
        "127.0.0.1 localhost\n",
        f"mount --bind {tmp_path}/resolv.conf /etc/resolv.conf",
        "echo hosts: files dns > nsswitch.conf",
        f"sed -i s/start_timeout=40/{limit}=1/ program.py",
        f"NNODES=2 NODE_RANK={index} MASTER_ADDR=pod-0.svc {sys.executable} silent.py",
    )
    assert line.startswith("StartError the name service of this host has not answered for 1 s")


LAUNCH = f"NNODES=2 MASTER_ADDR={{master}} {sys.executable} program.py {{function}}"


@pytest.mark.hosts
@pytest.mark.netns
def test_gloo_uses_the_network_of_host_0_and_not_that_of_the_name(tmp_path: Path) -> None:
    """Two networks and no default route; the host's name is 127.0.1.1, as Debian writes it."""
    launch = LAUNCH.format(master="10.9.0.1", function="meets")
    said = in_namespace(
        tmp_path,
        "127.0.0.1 localhost\n127.0.1.1 here\n",
        "hostname here",
        *network("front", "10.8.0.1/24"),
        *network("back", "10.9.0.1/24"),
        f"NODE_RANK=1 {launch} & NODE_RANK=0 {launch}; wait",
    )
    assert said == ["[('back', 2.0)]"] * 2


@pytest.mark.hosts
@pytest.mark.netns
def test_debians_name_of_host_0_is_refused_at_once(tmp_path: Path) -> None:
    launch = LAUNCH.format(master="here", function="where")
    [line] = in_namespace(
        tmp_path, "127.0.0.1 localhost\n127.0.1.1 here\n", "hostname here", f"NODE_RANK=0 {launch}"
    )
    assert line.startswith("PortError the other hosts are to reach this one as 'here'")
    assert "that name is 127.0.1.1, which is each host itself. Set MASTER_ADDR to the IP" in line


@pytest.mark.hosts
@pytest.mark.netns
@pytest.mark.parametrize(
    ("master", "function", "found"),
    [
        ("fd00:9::1", "where", ("back", "fd00:9::1", 2)),
        ("[fd00:9::1]", "meets", ("back", 2.0)),
        ("six", "where", ("back", "six", 2)),
    ],
)
def test_hosts_that_have_ipv6_alone(
    tmp_path: Path, master: str, function: str, found: tuple[object, ...]
) -> None:
    launch = LAUNCH.format(master=master, function=function)
    said = in_namespace(
        tmp_path,
        "::1 localhost\nfd00:9::1 six\n",
        *network("back", "fd00:9::1/64 nodad"),
        f"NODE_RANK=1 {launch} & NODE_RANK=0 {launch}; wait",
    )
    assert said == [f"[{found}]"] * 2
