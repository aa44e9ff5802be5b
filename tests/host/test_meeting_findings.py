"""What ``xmp doctor`` says of the meeting of several hosts."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from xmp._hosts.carrier.peer import reach
from xmp._hosts.carrier.sealed import Greeting, Keys
from xmp._os.probe import examination, findings
from xmp._words.errors import PortError
from xmp._words.types import HostFacts, PortNeed, Request

SECRET = "kept-apart-4711-kept-apart"
PLACED = {"NNODES": "4", "NODE_RANK": "2", "MASTER_ADDR": "10.0.0.9"}


@contextlib.contextmanager
def free(needs: Sequence[PortNeed]) -> Any:
    yield None


def examined(
    env: dict[str, str], at_host_0: str = "connection refused"
) -> list[examination.Finding]:
    facts = HostFacts(env=env, frameworks={"torch": "2.13.0"}, cpus=(0, 1), memory_bytes=8 << 30)
    asked = Request(runtime="cpu", nprocs=2)
    return examination.examine(facts, asked, free, reach=lambda address, port: at_host_0)


def texts(env: dict[str, str], at_host_0: str = "connection refused") -> list[str]:
    return [str(finding) for finding in examined(env, at_host_0)]


def one(lines: list[str], part: str) -> str:
    [line] = [line for line in lines if part in line]
    return line


def test_which_host_this_is_and_where_they_meet() -> None:
    line = one(texts(PLACED), "this is host")
    assert line == "note: this is host 2 of 4; their launchers meet at 10.0.0.9 port 30500"
    assert not any("host 0" in line or "SECRET" in line for line in texts({}))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("xmp", "note: at 10.0.0.9 port 30500 the coordinator of a launch answers"),
        ("another program", "problem: at 10.0.0.9 port 30500 another program than xmp listens"),
        ("connection refused", "note: host 0 is reached at 10.0.0.9, where nothing listens"),
        ("timed out", "problem: 10.0.0.9 port 30500 cannot be reached: timed out"),
        ("no route to host", "problem: 10.0.0.9 port 30500 cannot be reached: no route to host"),
    ],
)
def test_whether_host_0_is_reached(what: str, said: str) -> None:
    assert any(line.startswith(said) for line in texts(PLACED, what))


def test_the_last_line_speaks_for_this_host_alone() -> None:
    said = "could take part in a launch; the others were not asked: run this on each of them"
    assert findings.verdict(examined(PLACED)) == f"host 2 of 4 {said}"
    assert findings.verdict(examined({**PLACED, "NODE_RANK": "0"})) == f"host 0 of 4 {said}"
    unknown = examined(PLACED, "name or service not known")
    assert findings.verdict(unknown) == "a launch would not work here"
    assert findings.verdict(examined({})) == "a launch would work here"


def test_what_was_looked_at_on_host_0() -> None:
    checked = "note: this host has the address 10.0.0.9, and these ports are free: 29500, 30500"
    assert checked in texts({**PLACED, "NODE_RANK": "0"})
    assert not any("ports are free" in line for line in [*texts(PLACED), *texts({})])


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("", "warning: XMP_JOB_SECRET is not set: any program that reaches 10.0.0.9 port 30500"),
        ("7", "warning: XMP_JOB_SECRET has 1 characters"),
        (SECRET, "note: the hosts prove to each other that they know XMP_JOB_SECRET"),
    ],
)
def test_who_could_come(secret: str, said: str) -> None:
    lines = texts({**PLACED, "XMP_JOB_SECRET": secret})
    assert one(lines, "XMP_JOB_SECRET").startswith(said)
    assert SECRET not in "\n".join(lines)


def test_a_taken_port_of_host_0_is_a_problem() -> None:
    def taken(needs: Sequence[PortNeed]) -> Any:
        raise PortError(f"port {needs[0].port} is taken")

    facts = HostFacts(env={**PLACED, "NODE_RANK": "0"}, cpus=(0, 1), memory_bytes=8 << 30)
    found = [str(f) for f in examination.examine(facts, Request(runtime="cpu", nprocs=2), taken)]
    assert "problem: port 30500 is taken [XMP-O01]" in found


@pytest.mark.parametrize(
    "bad", [{"NNODES": "four"}, {"NNODES": "-1"}, {"NODE_RANK": "4"}, {"NODE_RANK": ""}]
)
def test_bad_numbers_are_problems(bad: dict[str, str]) -> None:
    first = texts({**PLACED, **bad})[0]
    assert first.startswith("problem: ")
    assert next(iter(bad)) in first


def test_what_listens_is_told_apart() -> None:
    greetings = [Greeting(Keys("7", b"")).data, b"SSH-2.0-OpenSSH_9.2\r\n", b""]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            for greeting in greetings:
                with server.accept()[0] as connection:
                    connection.sendall(greeting)

        thread = threading.Thread(target=serve)
        thread.start()
        found = [reach("127.0.0.1", port) for _ in greetings]
        thread.join()
    assert found == ["xmp", "another program", "another program"]
    assert "refused" in reach("127.0.0.1", port)


@pytest.mark.parametrize("command", ["facts", "plan", "plan --json", "doctor"])
def test_no_command_shows_the_secret(command: str) -> None:
    placed = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": "27100"}
    done = subprocess.run(
        [sys.executable, "-m", "xmp", *command.split()],
        env={**os.environ, **placed, "XMP_JOB_SECRET": SECRET, "XMP_LOG": "debug"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert SECRET not in done.stdout
    assert {"facts": "(hidden)", "doctor": "that they know XMP_JOB_SECRET"}.get(command, "") in (
        done.stdout
    )
    assert "Traceback" not in done.stdout
