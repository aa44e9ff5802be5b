"""What children of a replica have of ours, and what they can do with it.

A replica keeps, besides what the user has opened: its connection to the supervisor, the reading
ends of two pipes (lifeline, first batch), its own stack file, and on the first replica of a host
the leased ports, which listen. A program that it executes has none of that. Forks have it all, and
may become another user: only the connection can do anything, and the kernel says who sends.
"""

from __future__ import annotations

import array
import contextlib
import multiprocessing
import os
import pickle
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import launch
from tests.support.stage import Stage
from tests.support.waiting import until
from xmp import _inside
from xmp._processes.messages import replica as messages
from xmp._processes.messages.connection import Closed, pair
from xmp._processes.messages.launch import AnswerDebugger
from xmp._processes.messages.timeline import Timeline

ANOTHER_USER = 65534
WITHOUT = os.environ.get("XMP_WITHOUT", "")
names_senders = pytest.mark.skipif("passcred" in WITHOUT, reason="no kernel says who sends")


def channel() -> Any:
    return _inside.channel()


def in_fork(run: Callable[[], Any]) -> Any:
    """What ``run`` returns in a fork of this process; AssertionError if it raises."""
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(said, pickle.dumps(run()))
        os._exit(0)
    os.close(said)
    with open(heard, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    assert answer, "it has failed"
    return pickle.loads(answer)


# --- what they have -----------------------------------------------------------------------------


HELD = """
import os, socket, sys
import in_script, xmp

def kinds():
    found = []
    for name in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
        if name < 3 or target in USERS or target == "/dev/null":
            continue
        kind = target.split()[0].partition(":[")[0]
        if kind == "socket":
            with socket.socket(fileno=os.dup(name)) as known:
                listens = known.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                kind = "lease" if listens else known.family.name
        if kind == "pipe":
            with open(f"/proc/self/fdinfo/{name}") as info:
                flags = int(info.read().partition("flags:")[2].split()[0], 8)
            kind = "pipe to " + ("read", "write", "both")[flags & os.O_ACCMODE]
        found.append(kind)
    return sorted(found)

def never(rank):
    in_script.never_returns()

def fn(rank, users):
    global USERS
    USERS = users
    own = kinds()
    heard, said = os.pipe()
    USERS = [*users, os.readlink(f"/proc/self/fd/{heard}")]
    if os.fork() == 0:
        os.write(said, repr(kinds()).encode())
        os._exit(0)
    return own, eval(os.read(heard, 10000))

if __name__ == "__main__":
    users = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")[:-1]]
    # A template, and a launch that runs, are what a fork of the launcher could have of others.
    others = xmp.spawn(never, nprocs=1, runtime="cpu", join=False)
    others.pids()
    found = xmp.spawn(fn, (users,), nprocs=2, runtime="cpu", start_method=sys.argv[1])
    others.terminate()
    in_script.say(found=list(found))
"""


@pytest.mark.skipif("memfd" in WITHOUT, reason="stack files have other names")
def test_a_replica_and_its_forks_have_its_own_ends_alone(stage: Stage, method: str) -> None:
    found = stage.run(HELD, method).said["found"]
    for rank, (replica, forked) in enumerate(found):
        pipes = ["pipe to read"] * (1 if method == "spawn" else 2)
        leases = ["lease"] if rank == 0 else []
        stacks = f"/memfd:xmp-stacks-{rank}"
        assert replica == sorted([stacks, "AF_UNIX", *leases, *pipes])
        assert forked == replica, "nothing more, and all of it: only exec closes it"


PROGRAM = r"""
id -u
for own in /proc/$$/fd/*; do
    if [ "${own##*/}" -gt 2 ]; then readlink "$own"; fi
done
for pid in "$@"; do ls "/proc/$pid/fd"; done 2>/dev/null
true
"""
"""Prints its user, what it has inherited, and what it can open of these processes."""


def runs_programs(rank: int) -> list[str]:
    pids = [os.getppid(), os.getpid()]
    command = ["/bin/sh", "-c", PROGRAM, "sh", *map(str, pids)]
    ways: list[dict[str, Any]] = [
        {"user": ANOTHER_USER, "group": ANOTHER_USER, "extra_groups": []},
        {"preexec_fn": lambda: os.setuid(ANOTHER_USER)},
    ]
    options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": "/", "check": True}
    return [subprocess.run(command, close_fds=False, **options, **way).stdout for way in ways]


@pytest.mark.root
def test_a_program_of_another_user_has_and_opens_nothing(method: str) -> None:
    users = {os.readlink(f"/proc/self/fd/{n}") for n in range(3, 1000) if is_inheritable(n)}
    for found in launch(method, runs_programs):
        for text in found:
            user, *others = text.splitlines()
            assert user == str(ANOTHER_USER)
            # Under "fork" a replica keeps what the user's program has left open for its children.
            assert {*others} <= (users if method == "fork" else set())


def is_inheritable(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


# --- what they can do ---------------------------------------------------------------------------


class Touch:
    """Unpickled, it makes a file that says who did it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"id -u > {self.path}",)


def packets(path: Path) -> list[bytes]:
    from xmp._processes.messages.plain_format import encoded

    now = time.monotonic_ns()
    pickled = pickle.dumps(("StackTexts", Touch(path)))
    return [
        b".\0" + pickled,
        b"s" + pickled,
        b"",
        b"garbage",
        b"+part",
        b"." + encoded(messages.ExitCalled(now, 3, Timeline())),
        b"." + encoded(messages.ResultReady(now, pickled, len(pickled), Timeline(), [], False)),
        b"." + encoded(messages.FunctionEntered()),
    ]


def sends_it_all(folder: Path, user: int | None) -> None:
    if user is not None:
        os.setuid(user)
    number = os.dup(channel()._connection.fileno())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=number) as own:
        for packet in packets(folder / "ran"):
            own.send(packet)
        for count in (1, 30):
            rights = array.array("i", [2] * count)
            own.sendmsg([b".x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def has_a_child_that_sends(rank: int, folder: Path, user: int | None) -> int:
    if rank == 0:
        in_fork(lambda: sends_it_all(folder, user))
    return rank + 10


@pytest.mark.root
@names_senders
def test_what_a_child_of_another_user_sends_is_ignored(method: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert [*launch(method, has_a_child_that_sends, tmp_path, ANOTHER_USER)] == [10, 11]
    assert not (tmp_path / "ran").exists()


@names_senders
def test_what_a_child_reports_is_ignored(method: str, tmp_path: Path) -> None:
    assert [*launch(method, has_a_child_that_sends, tmp_path, None)] == [10, 11]
    assert not (tmp_path / "ran").exists()


def asks_as_another_user() -> str:
    os.setuid(ANOTHER_USER)
    ours, theirs = pair()
    channel().send_apart(messages.OpenVoice(_inside.local_rank()), [theirs.fileno()])
    theirs.close()
    with contextlib.suppress(Closed):  # refused already
        ours.send(messages.TakeTurn("key"))
    return "sent"


def takes_a_turn_after_another_user(rank: int) -> str:
    if rank == 0:
        assert in_fork(asks_as_another_user) == "sent"
    with channel().turn("key"):
        return "had its turn"


@pytest.mark.root
@names_senders
def test_another_users_child_takes_no_turn(method: str) -> None:
    assert [*launch(method, takes_a_turn_after_another_user)] == ["had its turn"] * 2


def forks_and_runs_on(rank: int, folder: Path) -> str:
    pid = os.fork()
    if pid == 0:
        raise ValueError("the child's")
    os.waitpid(pid, 0)
    return "the replica's"


@names_senders
def test_a_fork_that_leaves_the_function_is_not_the_replica(method: str, tmp_path: Path) -> None:
    assert [*launch(method, forks_and_runs_on, tmp_path)] == ["the replica's"] * 2


SERIAL = xmp.MpSerialExecutor()


def worker(queue: Any, number: int) -> None:
    turn = SERIAL.run(lambda: f"turn {number}")
    queue.put(turn + channel().share(f"key {number}", lambda: " and value"))


def uses_xmp_in_children(rank: int) -> list[str]:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    for number in range(2):
        child = context.Process(target=worker, args=(queue, number))
        child.start()
        child.join()
    return [queue.get(), queue.get()]


def test_a_child_of_the_same_user_takes_turns_and_shares_values(method: str) -> None:
    want = ["turn 0 and value", "turn 1 and value"]
    assert [*launch(method, uses_xmp_in_children)] == [want, want]


def at_breakpoint() -> str:
    ours, theirs = pair()
    channel().send_apart(messages.BreakpointReached(_inside.rank()), [theirs.fileno()])
    theirs.close()
    ours.expect(AnswerDebugger, 20)
    ours.close()
    return "answered"


def has_a_child_at_a_breakpoint(rank: int) -> Any:
    return in_fork(at_breakpoint)


def test_a_child_of_the_same_user_may_be_debugged(method: str) -> None:
    assert [*launch(method, has_a_child_at_a_breakpoint, nprocs=1)] == ["answered"]


def dies_at_once(rank: int) -> None:
    channel()._connection.send(messages.ExitCalled(time.monotonic_ns(), 0, Timeline()))
    os._exit(0)


def test_last_words_are_the_replicas_own_after_its_end(method: str) -> None:
    for _ in range(3):
        assert [*launch(method, dies_at_once)] == [None, None]


def floods(started: Path) -> None:
    os.setsid()
    number = os.dup(channel()._connection.fileno())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=number) as own:
        while True:
            own.send(b"x")
            started.touch()


def leaves_one_that_floods(rank: int, folder: Path) -> int:
    started = folder / str(rank)
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            floods(started)
        os._exit(0)
    until(started.exists, 20)
    return rank


@names_senders
def test_a_child_that_sends_without_end_does_not_keep_the_supervisor(
    method: str, tmp_path: Path
) -> None:
    assert [*launch(method, leaves_one_that_floods, tmp_path, timeout=40)] == [0, 1]


IMPORTS = """
import os, pickle, socket, sys
import in_script, xmp

class Touch:
    def __reduce__(self):
        return os.system, ("id -u > " + sys.argv[2],)

def sends_as_another_user():
    if os.fork() == 0:
        os.setuid(65534)
        for number in range(3, 300):
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=number) as own:
                    own.settimeout(1)
                    pickled = pickle.dumps(("ProcessEnded", 0, Touch()))
                    own.send(b".\\0" + pickled)
                    print("sent", file=sys.stderr)
            except OSError:
                pass
        os._exit(0)
    os.wait()

if __name__ != "__main__" or sys.argv[1] == "fork":
    sends_as_another_user()

def fn(rank):
    return rank

if __name__ == "__main__":
    in_script.say(results=list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
"""


@pytest.mark.root
@names_senders
def test_what_a_fork_of_the_script_sends_as_another_user_is_ignored(
    stage: Stage, tmp_path: Path, method: str
) -> None:
    done = stage.run(IMPORTS, method, str(tmp_path / "ran"))
    assert ("sent" in done.err) == (method != "fork"), "the launcher has no connection yet"
    assert done.said["results"] == [0, 1]
    assert not (tmp_path / "ran").exists()
