"""The hosts that other tests launch on: they have names and addresses, can be cut off, and end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.in_script import is_alive
from tests.support.namespaces import Host, network
from tests.support.waiting import until

pytestmark = [pytest.mark.hosts, pytest.mark.netns, pytest.mark.root]

ECHO = """
import socket, sys
with socket.create_server(("", 7000)) as server:
    peer = server.accept()[0]
    while word := peer.recv(9):
        peer.send(word)
"""
TALK = """
import socket, sys, time
end = time.monotonic() + 20
while True:
    try:
        peer = socket.create_connection((sys.argv[1], 7000), timeout=5)
        break
    except ConnectionRefusedError:  # it does not listen yet
        assert time.monotonic() < end
for line in sys.stdin:
    peer.settimeout(float(line))
    peer.send(b"word")
    try:
        print(peer.recv(9).decode(), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


def output(host: Host, *command: str) -> str:
    return subprocess.run(
        host.command(*command), stdout=subprocess.PIPE, text=True, check=True, timeout=20
    ).stdout.strip()


def test_hosts_have_names_and_addresses(tmp_path: Path) -> None:
    with network(tmp_path, 3) as hosts:
        for index, host in enumerate(hosts):
            assert output(host, "uname", "-n") == host.name == f"h{index}"
            assert f"{host.address}/24" in output(host, "ip", "-brief", "address", "show", "eth0")
            look_up = "import socket; print(socket.gethostbyname('h2'))"
            assert output(host, sys.executable, "-c", look_up) == hosts[2].address
            assert output(host, "pwd") == os.getcwd()
            assert host.pids() == {}


class Talk:
    """Two programs that exchange words."""

    def __init__(self, hosts: list[Host]) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.listens = subprocess.Popen(hosts[1].command(sys.executable, "-c", ECHO))
        self.speaks = subprocess.Popen(
            hosts[0].command(sys.executable, "-c", TALK, hosts[1].name), text=True, **pipes
        )

    def answer(self, seconds: float) -> str:
        assert self.speaks.stdin is not None
        assert self.speaks.stdout is not None
        self.speaks.stdin.write(f"{seconds}\n")
        self.speaks.stdin.flush()
        return self.speaks.stdout.readline().strip()

    def end(self) -> None:
        self.speaks.communicate(timeout=20)
        self.listens.wait(20)


@pytest.mark.parametrize("way", ["cut", "unplug", "lose_power"])
def test_a_host_that_is_cut_off_says_nothing(tmp_path: Path, way: str) -> None:
    with network(tmp_path) as hosts:
        talk = Talk(hosts)
        assert talk.answer(5) == "word"
        getattr(hosts[1], way)()
        assert talk.answer(0.5) == "TimeoutError"  # no end of file, no reset
        if way != "lose_power":
            hosts[1].plug()
            assert talk.answer(5).startswith("word")
        talk.end()


def test_the_end_of_a_network_is_the_end_of_its_processes(tmp_path: Path) -> None:
    with network(tmp_path) as hosts:
        waits = "import os, signal; os.fork(); os.setsid() if os.fork() else None; signal.pause()"
        started = [subprocess.Popen(host.command(sys.executable, "-c", waits)) for host in hosts]
        until(lambda: all(len(host.pids()) == 4 for host in hosts))
        pids = [pid for host in hosts for pid in host.pids()]
    for process in started:
        process.wait(5)
    until(lambda: not any(map(is_alive, pids)))


def test_hosts_end_with_the_process_that_made_them(tmp_path: Path) -> None:
    source = (
        "import os, sys, pathlib\nfrom tests.support.namespaces import network\n"
        "with network(pathlib.Path(sys.argv[1])) as hosts:\n"
        "    print(*(host.first for host in hosts), flush=True)\n    sys.stdin.read()"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with maker:
        assert maker.stdout is not None
        firsts = list(map(int, maker.stdout.readline().split()))
        assert len(firsts) == 2
        assert all(map(is_alive, firsts))
        maker.kill()
    until(lambda: not any(map(is_alive, firsts)))
