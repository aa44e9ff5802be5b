"""Carrier processes of several hosts, on this one: roll call, verdict, what strangers can do."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.waiting import until
from xmp._hosts.carrier.host_link import HostLink
from xmp._hosts.carrier.words import HostCard
from xmp._words.errors import PlanError, StartError, XmpError
from xmp._words.host_words import HostFailure, HostMeeting

pytestmark = pytest.mark.hosts

SECRET = b"of this job"
CAUSE = HostFailure(rank=3, local_rank=1, pid=77, kind="ReplicaRaised", text="ValueError: label")


class Hosts:
    """The launchers' links of a job, all in this process."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self.listener.getsockname()[1]
        self.links: list[HostLink] = []
        self.notices: list[str] = []

    def start(self, index: int, of: int, limit: float = 20.0, **other: Any) -> HostLink:
        job, secret = other.pop("job", "7"), other.pop("secret", SECRET)
        card = {"name": f"n{index}", "replicas": 2, "xmp": "0.3.0", "python": "3.11.7", **other}
        meeting = HostMeeting(index, of, "127.0.0.1", self.port)
        link = HostLink(meeting, HostCard(index, of, **card), limit, job, secret)
        link.start(self.listener.fileno() if index == 0 and not self.links else -1)
        self._stack.callback(link.end)
        self.links.append(link)
        return link

    def come(self, restart: int = 0) -> list[XmpError | None]:
        """All come to the roll call; the error of each."""
        errors: dict[HostLink, XmpError | None] = {}

        def come(link: HostLink) -> None:
            try:
                link.come(restart, self.notices.append)
                errors[link] = None
            except XmpError as error:
                errors[link] = error

        threads = [threading.Thread(target=come, args=(link,)) for link in self.links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [errors[link] for link in self.links]

    def wait(
        self, condition: Callable[[HostLink], Any], *links: HostLink, seconds: float = 5
    ) -> None:
        """Take in what comes until the condition is true of all links."""
        wanted = links or tuple(self.links)

        def true() -> bool:
            for link in select.select(wanted, [], [], 0.02)[0]:
                link.take_in()
            return all(condition(link) for link in wanted)

        until(true, seconds)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def hosts(stack: ExitStack) -> Hosts:
    return Hosts(stack)


def four_of(stack: ExitStack) -> Hosts:
    hosts = Hosts(stack)
    for index in range(4):
        hosts.start(index, of=4)
    assert hosts.come() == [None] * 4
    return hosts


@pytest.fixture
def four(stack: ExitStack) -> Hosts:
    return four_of(stack)


def test_the_first_failure_is_every_hosts_verdict(four: Hosts) -> None:
    four.links[1].fail(CAUSE)
    four.wait(lambda link: link.verdict, four.links[2])
    four.links[2].fail(HostFailure(rank=5, text="another"))
    four.wait(lambda link: link.verdict)
    assert {link.verdict for link in four.links} == {
        HostFailure(1, "n1", 3, 1, 77, "ReplicaRaised", "ValueError: label")
    }


def test_a_symptom_gives_way_to_the_cause(four: Hosts) -> None:
    four.links[0].fail(HostFailure(rank=1, text="connection closed by peer", symptom=True))
    four.links[1].fail(CAUSE)
    four.wait(lambda link: link.verdict)
    assert {link.verdict.rank for link in four.links if link.verdict} == {3}


def test_a_symptom_alone_is_the_verdict(four: Hosts) -> None:
    four.links[2].fail(HostFailure(rank=4, text="connection closed by peer", symptom=True))
    four.wait(lambda link: link.verdict)
    assert {link.verdict.host for link in four.links if link.verdict} == {2}


def test_all_are_done_when_the_last_is(four: Hosts) -> None:
    for link in four.links[:3]:
        link.done()
    four.links[0].advance()
    four.links[3].preempt()
    four.wait(lambda link: link.progress and link.preempted, four.links[1])
    assert not any(link.all_done for link in four.links)
    four.links[3].done()
    four.wait(lambda link: link.all_done)
    assert not any(link.verdict for link in four.links)


def test_a_failed_attempt_is_followed_by_another(four: Hosts) -> None:
    for attempt in (1, 2):
        four.links[3].fail(CAUSE)
        four.wait(lambda link: link.verdict)
        assert four.come(attempt) == [None] * 4
        assert not any(link.verdict for link in four.links)


@pytest.mark.parametrize("launcher", ["launcher", "agent"])
def test_a_host_whose_launcher_ends_is_lost(hosts: Hosts, launcher: str) -> None:
    """Its carrier process reports that, and ends."""
    program = f"""
import os
from xmp._hosts.carrier.host_link import HostLink
from xmp._hosts.carrier.words import HostCard
from xmp._words.host_words import HostMeeting
link = HostLink(HostMeeting(1, 2, "127.0.0.1", {hosts.port}), HostCard(
    1, 2, "n1", 2, "0.3.0", "3.11.7", launcher={launcher!r}), 20.0, "7", {SECRET!r})
link.start()
link.come(0, print)
print(link.pid, flush=True)
input()
"""
    command = [sys.executable, "-c", program]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout is not None
        link = hosts.start(0, of=2)
        assert hosts.come() == [None]
        carrier = int(other.stdout.readline())
        other.kill()
    hosts.wait(lambda link: link.verdict)
    assert link.verdict is not None
    assert link.verdict.text == f"host 1 (n1) is lost: its {launcher} has ended"
    until(lambda: not os.path.exists(f"/proc/{carrier}"))


def test_a_host_whose_carrier_process_ends_is_lost(four: Hosts) -> None:
    os.kill(four.links[2].pid, signal.SIGKILL)
    four.wait(lambda link: link.verdict)
    texts = [link.verdict.text for link in four.links if link.verdict]
    assert texts[2].startswith("host 2 (n2) has lost the others")
    assert texts[0] == texts[1] == texts[3] == "host 2 (n2) is lost: its connection has ended"


def test_a_lost_coordinator_is_a_lost_host(four: Hosts) -> None:
    os.kill(four.links[0].pid, signal.SIGKILL)
    four.wait(lambda link: link.verdict)
    for link in four.links[1:]:
        assert link.verdict is not None
        assert link.verdict.host == 0
        assert link.verdict.name == "n0"
        where = f"host 0 (n0), the coordinator at 127.0.0.1 port {four.port}, is lost"
        assert where in link.verdict.text


def test_a_silent_host_is_lost(stack: ExitStack) -> None:
    """As after a cut link: its connection neither ends nor brings anything. Two jobs at once."""
    jobs = {index: four_of(stack) for index in (0, 2)}
    for index, job in jobs.items():
        os.kill(job.links[index].pid, signal.SIGSTOP)
    for index, job in jobs.items():
        others = [link for link in job.links if link is not job.links[index]]
        job.wait(lambda link: link.verdict, *others, seconds=15)
        for link in others:
            assert link.verdict is not None
            assert link.verdict.host == index
            assert f"heard nothing of it for {9 if index else 11} s" in link.verdict.text
        os.kill(job.links[index].pid, signal.SIGCONT)


def test_an_absent_host_is_named_by_all(hosts: Hosts) -> None:
    for index in (0, 2):
        hosts.start(index, of=3, limit=1.5)
    errors = hosts.come()
    said = "host 1 of 3 has not come; 0 (n0), 2 (n2) are here. xmp waited 1.5 s"
    for error in errors:
        assert isinstance(error, StartError)
        assert said in str(error)


def test_an_absent_coordinator_is_named(hosts: Hosts) -> None:
    hosts.listener.close()
    meeting = HostMeeting(1, 2, "127.0.0.1", hosts.port)
    hosts.links.append(link := HostLink(meeting, HostCard(1, 2), 1.0, "7", b""))
    link.start()
    [error] = hosts.come()
    link.end()
    assert isinstance(error, StartError)
    assert f"host 0, the coordinator at 127.0.0.1 port {hosts.port}, has not come" in str(error)
    assert "Connection refused" in str(error)
    assert "MASTER_ADDR" in str(error)


def test_hosts_that_do_not_fit_together_all_say_so(hosts: Hosts) -> None:
    """A table of what has to fit: ``test_roll_call.py``."""
    hosts.start(0, of=2)
    hosts.start(1, of=2, replicas=4)
    for error in hosts.come():
        assert isinstance(error, PlanError)
        assert "nprocs is 2 on host 0 (n0) and 4 on host 1 (n1)" in str(error)


def test_two_hosts_with_one_index_are_refused(hosts: Hosts) -> None:
    for index in (0, 1, 1):
        hosts.start(index, of=3)
    for error in hosts.come():
        assert isinstance(error, PlanError)
        assert "two hosts have the index 1: n1 and n1" in str(error)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"job": "8"}, "runs another job: two jobs have one address and port"),
        ({"secret": b"guessed"}, "give all hosts the same XMP_JOB_SECRET"),
    ],
)
def test_hosts_of_another_job_are_refused_alone(
    hosts: Hosts, other: dict[str, Any], said: str
) -> None:
    for index in (0, 1):
        hosts.start(index, of=2)
    stranger = hosts.start(1, of=2, **other)
    *errors, error = hosts.come()
    assert errors == [None, None]
    assert isinstance(error, StartError)
    assert said in str(error)
    assert stranger.verdict is None


RUBBISH = [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(80), b"\xff" * 100_000]


def test_strangers_change_nothing(hosts: Hosts) -> None:
    for index in (0, 1):
        hosts.start(index, of=2)
    with ExitStack() as stack:
        # Of those that are silent more than may wait for their handshake.
        for data in [*RUBBISH[:1] * 600, *RUBBISH[1:] * 60]:
            address = ("127.0.0.1", hosts.port)
            connection = stack.enter_context(socket.create_connection(address))
            try:
                connection.sendall(data)
            except OSError:
                pass  # the coordinator has dropped it
        assert hosts.come() == [None, None]
        for link in hosts.links:
            link.done()
        hosts.wait(lambda link: link.all_done)
