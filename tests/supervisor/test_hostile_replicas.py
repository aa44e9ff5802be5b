"""A replica that sends its supervisor what no replica of xmp sends: it alone pays for that."""

from __future__ import annotations

import os
import pickle
import re
import socket
import struct
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.in_script import is_alive
from tests.support.launching import failure, launch, never_returns
from tests.support.waiting import until
from xmp import _inside
from xmp._processes.messages import replica as messages
from xmp._processes.messages.connection import pair
from xmp._processes.messages.launch import StackTexts
from xmp._processes.messages.outcomes import packed_outcome
from xmp._processes.messages.plain_format import encoded
from xmp._processes.messages.timeline import Timeline
from xmp._processes.supervisor.message_checks import names_of_modules
from xmp._processes.system import linux
from xmp._processes.system.records import Records
from xmp._processes.system.stack_dump import StackFile

pytestmark = pytest.mark.failing
MEMORY_FILES = "memfd" not in os.environ.get("XMP_WITHOUT", "")


def channel() -> Any:
    """The replica's end of its connection to the supervisor."""
    known: Any = _inside.channel()
    return known._connection


def put(*packets: bytes, files: Sequence[int] = ()) -> None:
    """Send these packets as they are."""
    with socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=os.dup(channel().fileno())
    ) as s:
        for packet in packets:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
            s.sendmsg([packet], rights)


def tell(message: Any, *files: int) -> None:
    channel().send(message, files)


def ask(message: Any, *files: int) -> None:
    known: Any = _inside.channel()
    with known._voices.one(0) as voice:
        voice.send(message, files)
        never_returns()


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def result(size: int = 10, data: bytes | None = None, **changed: Any) -> Any:
    now = time.monotonic_ns()
    message = messages.ResultReady(now, data, size, Timeline(now), [], False)
    return message._replace(**changed)


def file_of(size: int) -> int:
    descriptor = linux.memory_file("test")
    os.ftruncate(descriptor, size)
    return descriptor


def fifo(folder: Path) -> int:
    os.mkfifo(folder / "fifo")
    return os.open(folder / "fifo", os.O_RDWR)


def endless_parts() -> None:
    put(b"(" + struct.pack("<Q", 60 << 20))
    while True:
        put(b"+" + bytes(90_000))


def no_reader() -> None:
    """Ask and ask, and read no answer."""
    known: Any = _inside.channel()
    with known._voices.one(0) as voice:
        while True:
            voice.send(messages.AskPreempted(1, True))


def no_debugger() -> None:
    ours, theirs = pair()
    tell(messages.BreakpointReached(0), theirs.fileno())
    ours.recv()  # the launcher lends its standard input, or refuses
    ours.send(StackTexts({}))
    never_returns()


ACTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "garbage": (lambda _: put(b"\xff garbage"), "has no mark"),
    "an empty packet": (lambda _: put(b""), "has no mark"),
    "an unknown kind": (lambda _: put(b".\xfe"), "its kind is 254"),
    "a truncated message": (lambda _: put(b"." + encoded(result(data=b""))[:-9]), "announced"),
    "a huge length": (
        lambda _: put(b"." + encoded(messages.TakeTurn(""))[:1] + b"\xff" * 4),
        "4294967295 bytes are announced",
    ),
    "a packet that is too long": (lambda _: put(b"." + bytes(150_000)), "longer than a packet"),
    "a pickle": (
        lambda folder: put(b".\0" + pickle.dumps(("StackTexts", Touch(folder / "ran")))),
        "its kind is 0",
    ),
    "a pickle in a file": (
        lambda folder: tell(StackTexts({0: Touch(folder / "ran"), 1: "x" * 200_000})),  # type: ignore[dict-item]
        "its kind is 255",
    ),
    "endless parts": (lambda _: endless_parts(), "longer than the 62914560 bytes"),
    "a message of 1 TB": (lambda _: put(b"(" + struct.pack("<Q", 1 << 40)), "are allowed"),
    "many descriptors": (
        lambda _: put(b"." + encoded(result()), files=[2] * 200),
        "more than one descriptor",
    ),
    "descriptors in parts": (
        lambda _: (
            put(b"(" + struct.pack("<Q", 9), files=[2]),
            put(b"+", files=[2]),
        ),
        "more than one descriptor",
    ),
    "a message without its descriptor": (lambda _: tell(result()), "0 descriptors, not 1"),
    "a descriptor beside another message": (
        lambda _: tell(messages.FunctionEntered(), 2),
        "1 descriptors, not 0",
    ),
    "a fifo as result": (lambda folder: tell(result(), fifo(folder)), "is no memory file"),
    "a short file as result": (lambda _: tell(result(), file_of(9)), "has 9 bytes, not 10"),
    "a size without bytes": (lambda _: tell(result(data=b"12")), "but it has 2 bytes"),
    "a negative size": (lambda _: tell(result(-1), file_of(9)), "its size is -1"),
    "a fifo as value": (
        lambda folder: ask(messages.GiveValue(True, None, 5), fifo(folder)),
        "is no memory file",
    ),
    "another rank's exception": (
        lambda _: tell(
            messages.ExceptionRaised(0, 1, "E", "", "", None, "", False, False, Timeline())
        ),
        "rank 1 is another replica's",
    ),
    "an exit code": (lambda _: tell(messages.ExitCalled(0, 256, Timeline())), "no exit code"),
    "another rank's breakpoint": (
        lambda _: tell(messages.BreakpointReached(1), 2),
        "rank 1 is another replica's",
    ),
    "a breakpoint without a connection": (
        lambda _: tell(messages.BreakpointReached(0), file_of(1)),
        "no end of a connection",
    ),
    "a debugger's pickle": (lambda _: no_debugger(), "its kind is 0"),
    "steps below none": (lambda _: ask(messages.AskPreempted(-1, False)), "counts -1 calls"),
    "a meeting of no such rank": (
        lambda _: ask(messages.Meet("key", [0, 9], 1)),
        r"local rank 0 meets \[0, 9\]",
    ),
    "a meeting with a past": (lambda _: ask(messages.Meet("key", [0], -1)), "it waits -1 ns"),
    "another rank's end": (lambda _: tell(messages.FunctionLeft(7)), "local rank 7 is another"),
    "another rank's voice": (
        lambda _: tell(messages.OpenVoice(1), channel().fileno()),
        "local rank 1 is another",
    ),
    "a voice without a connection": (
        lambda _: tell(messages.OpenVoice(0), file_of(1)),
        "no end of a connection",
    ),
    "a report on a voice": (
        lambda _: ask(messages.FunctionEntered()),
        "no voice of a replica sends a FunctionEntered",
    ),
    "a question that is no voice's": (
        lambda _: tell(messages.WantValue("key", 0, False)),
        "no replica sends a WantValue",
    ),
    "no such phase": (lambda _: tell(messages.PhaseBegun("\x1b[2J", 0)), "no such phase"),
    "an answer": (lambda _: tell(messages.MakeValue()), "no replica sends a MakeValue"),
    "no reader": (lambda _: no_reader(), "does not read the answers"),
    "endless reports": (
        lambda _: [tell(messages.FunctionEntered()) for _ in range(100)],
        "too many reports",
    ),
}


def hostile(rank: int, act: str, folder: Path) -> str:
    if rank == 0:
        until((folder / "pid").exists, 20)
        other = int((folder / "pid").read_text())
        until(lambda: not is_alive(other), 20)
        ACTS[act][0](folder)
        never_returns()
    (folder / "new").write_text(str(os.getpid()))
    (folder / "new").rename(folder / "pid")
    return "evidence"


def fails_by(act: str, method: str, folder: Path) -> xmp.ReplicaError:
    error = failure(method, hostile, act, folder, timeout=30)
    (cause,) = error.failures
    words = ACTS[act][1]
    if not MEMORY_FILES:
        words = words.replace("memory file", "(memory )?file")
    assert (cause.kind, cause.rank, cause.signal_name) == ("malformed", 0, "SIGKILL")
    assert re.search(words, cause.why), cause.why
    start = str(error).partition("\n")[0]
    assert "sent its supervisor a malformed message (" in start
    assert start.endswith(") and was killed by xmp [XMP-R08]")
    assert isinstance(error, xmp.ReplicaDied)
    assert error.results == {1: "evidence"}
    assert not (folder / "ran").exists()
    return error


@pytest.mark.parametrize("act", ACTS)
def test_it_is_killed_and_named(act: str, tmp_path: Path) -> None:
    if act == "an empty packet" and "passcred" in os.environ.get("XMP_WITHOUT", ""):
        pytest.skip("without its sender it looks like the end of the connection")
    fails_by(act, "forkserver", tmp_path)


def test_whatever_the_start_method(method: str, tmp_path: Path) -> None:
    error = fails_by("a pickle", method, tmp_path)
    assert "memory ran out" not in str(error)
    assert "out of memory" not in str(error)


@pytest.mark.parametrize("count", [1, 20_000])
def test_names_of_modules_end_no_launch(count: int, tmp_path: Path) -> None:
    """They are a hint: what no template should try is dropped."""
    names = ["rich.unicode17-0-0", "", "..", "a\nb", "a\0b", "\udc80", "x" * 2000, *["y"] * count]
    assert names_of_modules(names)[:3] == ["rich.unicode17-0-0", "..", "y"]
    assert len(names_of_modules(names)) <= 10_000
    assert [*launch("forkserver", names_modules, names)] == [0, 1]


def names_modules(rank: int, names: list[str]) -> int:
    if rank == 0:
        image = packed_outcome(0)
        tell(result(image.size, image.data, imported=names))
        os._exit(0)
    return rank


def stays_half(rank: int, done: Path) -> str:
    if rank == 0:
        put(b"(" + struct.pack("<Q", 1000))
        until(done.exists, 20)
    done.touch()
    return "whole"


def test_the_rest_of_a_message_is_not_waited_for(method: str, tmp_path: Path) -> None:
    assert [*launch(method, stays_half, tmp_path / "done")] == ["whole", "whole"]


def cuts_its_result(rank: int) -> Any:
    if rank == 0:
        descriptor = file_of(1 << 20)
        tell(result(1 << 20), descriptor)
        os.ftruncate(descriptor, 0)
        os._exit(0)


def test_a_result_that_is_cut_afterwards_is_an_error(method: str) -> None:
    with pytest.raises(xmp.XmpError, match=r"cannot be loaded here|malformed message"):
        launch(method, cuts_its_result)


def test_a_stack_file_that_was_cut_is_empty() -> None:
    descriptor = file_of(100)
    stacks = StackFile(descriptor)
    before = stacks.size()
    os.ftruncate(descriptor, 0)
    assert stacks.answer(before) == ""
    stacks.close()


@pytest.mark.skipif(not MEMORY_FILES, reason="only memory files are sealed")
def test_the_file_of_the_records_cannot_be_cut() -> None:
    records = Records.new(2)
    with pytest.raises(PermissionError):
        os.ftruncate(records.descriptor, 0)
    assert records.last_progress(1) == 0
    os.close(records.descriptor)


def cuts_what_is_ours(rank: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if os.path.lexists(path) and "xmp-stacks" in os.readlink(path):
            os.pwrite(int(name), b"x" * 100, 0)
            os.ftruncate(int(name), 10)
    os.kill(os.getpid(), 11)


def test_a_stack_file_that_is_cut_is_read(method: str) -> None:
    assert failure(method, cuts_what_is_ours).signal_name == "SIGSEGV"


def text_of_many_bytes(rank: int) -> None:
    if rank == 0:
        raise ValueError("x" * 30_000, bytes(3_000_000))


def test_a_large_exception_arrives(method: str) -> None:
    error = failure(method, text_of_many_bytes)
    assert isinstance(error.__cause__, ValueError)
    assert len(error.__cause__.args[1]) == 3_000_000
