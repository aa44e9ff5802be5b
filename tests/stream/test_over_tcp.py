"""Both processes of a stream over TCP: either may connect, and how each ends."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.stream.test_tcp import ANY, HERE, SECRET, is_closed, port_of
from tests.support.waiting import until
from xmp._hosts.engines.remote_agent import RemoteAgent
from xmp._hosts.stream.tcp import listening, port_range
from xmp._hosts.stream.ways import order_of_connection
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.hosts import Ping, Pong, Prepare
from xmp._processes.system import interpreter

THERE = "127.0.0.3"


class Host(NamedTuple):
    """``xmp-host``, as what starts it on its host has it."""

    process: subprocess.Popen[bytes]
    lifeline: int
    starter: socket.socket

    def answer(self) -> dict[str, Any]:
        self.starter.settimeout(30)
        found: dict[str, Any] = json.loads(self.starter.recv(1 << 12))
        return found

    def end(self) -> None:
        self.starter.close()
        self.process.kill()
        self.process.wait()
        os.close(self.lifeline)


@pytest.fixture
def started() -> Iterator[list[Host]]:
    hosts: list[Host] = []
    yield hosts
    for each in hosts:
        each.end()


def start(hosts: list[Host], port: int, ports: str = "", own: str = THERE) -> Host:
    """Start ``xmp-host`` for a driver that listens at this port, 0 for none."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    watched, lifeline = os.pipe()
    numbers = theirs.fileno(), watched
    command = interpreter.fresh_interpreter("xmp._hosts.stream.far", "main", *numbers)
    process = subprocess.Popen(command, pass_fds=numbers, start_new_session=True)
    theirs.close()
    os.close(watched)
    order = {"address": HERE, "port": port, "ports": ports, "own": own, "secret": SECRET}
    ours.send(json.dumps({**order, "first": []}).encode())
    hosts.append(Host(process, lifeline, ours))
    return hosts[-1]


@pytest.fixture
def agent() -> Iterator[RemoteAgent]:
    """The driver's side, which listens."""
    with listening(HERE, ANY) as listener:
        order = order_of_connection(SECRET)
        made = RemoteAgent(0, "there", order, dict(os.environ), [listener.fileno()])
        made.facts["port"] = port_of(listener)
    yield made
    made.hang_up()
    made.end()


def answers(agent: RemoteAgent) -> bool:
    agent.send(Ping())
    return agent.answer(Pong, 30).at > 0


def reached(agent: RemoteAgent, started: list[Host]) -> Host:
    """Start a host that connects, and hear its agent."""
    host = start(started, agent.facts["port"])
    assert host.answer()["met"]
    assert answers(agent)
    return host


def without_its_agent(agent: RemoteAgent, started: list[Host]) -> tuple[Host, int]:
    """Return a host whose agent was killed, as the driver has heard, and that agent's pid."""
    host = reached(agent, started)
    (first,) = children(host.process.pid)
    os.kill(first, 9)
    with pytest.raises(Closed):
        agent.answer(Pong, 30)
    return host, first


def disturb(port: int, address: str) -> list[socket.socket]:
    """Strangers: some say nothing, one says what is no answer, one ends at once."""
    found = [socket.create_connection((address, port), 10) for _ in range(20)]
    found[-1].sendall(os.urandom(4096))
    found.pop(0).close()
    return found


def test_the_host_connects(agent: RemoteAgent, started: list[Host]) -> None:
    strangers = disturb(agent.facts["port"], HERE)
    host = start(started, agent.facts["port"])
    assert host.answer() == {"met": True}
    assert answers(agent)
    assert all(map(is_closed, strangers))
    os.close(os.dup(host.lifeline))
    for each in strangers:
        each.close()


def test_the_driver_connects(agent: RemoteAgent, started: list[Host]) -> None:
    with socket.socket() as closed:  # nothing listens there
        closed.bind((HERE, 0))
        host = start(started, closed.getsockname()[1], "20030-20039")
        found = host.answer()
    assert (found["port"] in range(20030, 20040), found["refused"]) == (True, "connection refused")
    strangers = disturb(found["port"], THERE)
    agent.dial(THERE, found["port"])
    assert answers(agent)
    assert all(map(is_closed, strangers))
    for each in strangers:
        each.close()


@pytest.mark.parametrize(
    ("own", "ports", "words"),
    [
        (THERE, "", "connection refused"),
        (THERE, "20040-20040", "it cannot listen there: address already in use"),
        ("192.0.2.1", "", "it cannot listen there: cannot assign requested address"),
    ],
    ids=["a closed port", "no free port", "an address of another machine"],
)
def test_neither_can(
    agent: RemoteAgent, started: list[Host], own: str, ports: str, words: str
) -> None:
    with listening(THERE, port_range("20040-20040")):
        host = start(started, 0, ports, own)
        found = host.answer()
    assert found["refused"] == "it does not listen"
    assert bool(found["port"]) == (words == "connection refused")
    host.process.kill()
    host.process.wait()
    agent.dial(THERE, found["port"], found["why"])
    with pytest.raises(Closed):
        agent.answer(Pong, 30)
    assert agent.how_it_ended() == words


def test_the_host_ends_with_its_lifeline_and_the_driver_hears_it(
    agent: RemoteAgent, started: list[Host]
) -> None:
    host = reached(agent, started)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), host.lifeline)  # which closes it
    assert host.process.wait(5) == -9
    with pytest.raises(Closed):
        agent.answer(Pong, 5)
    assert "has lost its connection" in agent.how_it_ended()


def test_the_host_ends_with_its_driver(agent: RemoteAgent, started: list[Host]) -> None:
    host = reached(agent, started)
    agent.kill()
    assert host.process.wait(5) == 0


def test_another_agent_answers_for_one_that_was_killed(
    agent: RemoteAgent, started: list[Host]
) -> None:
    host, child = without_its_agent(agent, started)
    assert agent.how_it_ended() == "was killed by SIGKILL"
    until(lambda: children(host.process.pid) not in ([], [child]), 10)
    assert answers(agent)
    (second,) = children(host.process.pid)
    os.kill(second, 9)
    assert host.process.wait(10) == 0


def test_another_agent_launches_nothing(agent: RemoteAgent, started: list[Host]) -> None:
    """What was sent to the first may reach the second."""
    host, first = without_its_agent(agent, started)
    agent.send(Prepare(("no.such.module",)))  # an agent that launches would start a template
    assert answers(agent)
    until(lambda: children(host.process.pid) not in ([], [first]), 10)
    assert children(children(host.process.pid)[0]) == []


def test_the_link_was_killed_before_it_was_told_where_the_host_is(agent: RemoteAgent) -> None:
    os.kill(agent.pid, 9)
    until(lambda: agent.readable(), 10)
    agent.dial(THERE, 1)
    with pytest.raises(Closed):
        agent.answer(Pong, 30)
    assert agent.how_it_ended() == "has lost its stream: xmp-link was killed by SIGKILL"


def test_xmp_host_says_why_it_has_ended(agent: RemoteAgent, started: list[Host]) -> None:
    """It has no descriptor left for what it is sent."""
    host = reached(agent, started)
    resource.prlimit(host.process.pid, resource.RLIMIT_NOFILE, (3, 3))
    null = os.open(os.devnull, os.O_RDWR)
    agent._connection.send(Ping(), [null, null, null])
    os.close(null)
    with pytest.raises(Closed):
        agent.answer(Pong, 30)
    assert agent.how_it_ended().startswith("was ended by xmp-host: OSError: ")
    assert "Too many open files" in agent.how_it_ended()


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]
