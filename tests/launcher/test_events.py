"""``events=``: every change of a launch's state, once, in order, to a function or into a file."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import launch, never_returns, nothing_started
from tests.support.waiting import until
from xmp._plan import runtimes

pytestmark = pytest.mark.failing

BEFORE_FN = {"importing", "joining"}


def events_of(method: str, fn: Any, *args: Any, **options: Any) -> list[xmp.Event]:
    """The events of a launch, whatever becomes of it; they are in order, and of one launch."""
    events: list[xmp.Event] = []
    try:
        launch(method, fn, *args, events=events.append, **options)
    except (xmp.XmpError, KeyboardInterrupt):
        pass
    checked(events)
    return events


def checked(events: list[xmp.Event]) -> None:
    times = [event.elapsed for event in events]
    assert times == sorted(times)
    assert events[0].name == "planned"
    assert [event.name for event in events].count("finished") == 1
    assert events[-1].name == "finished"
    assert len({event.launch_id for event in events}) == 1
    assert len({(event.name, event.rank, event.elapsed) for event in events}) == len(events)


def of(events: list[xmp.Event], rank: int | None) -> list[str]:
    """What one replica (None: the launch) went through, without what methods differ in."""
    return [e.name for e in events if e.rank == rank and e.name not in BEFORE_FN]


def the(events: list[xmp.Event], name: str, rank: int | None = None) -> xmp.Event:
    (event,) = [e for e in events if e.name == name and rank in (None, e.rank)]
    return event


def pid_of(rank: int) -> int:
    return os.getpid()


def test_a_launch_that_goes_well(method: str) -> None:
    events: list[xmp.Event] = []
    began = time.time()
    got = launch(method, pid_of, nprocs=3, events=events.append)
    checked(events)
    assert of(events, None) == ["planned", "started", "finished"]
    for rank in range(3):
        assert of(events, rank) == ["forked", "running", "returned", "exited"]
        assert {e.pid for e in events if e.rank == rank} == {got[rank]}
        assert the(events, "exited", rank).exit_code == 0
    assert the(events, "planned").pid == os.getpid()
    assert "nprocs 3" in the(events, "planned").message
    assert the(events, "finished").message == ""
    assert began - 1 < events[0].time <= events[-1].time < time.time() + 1


def test_what_comes_before_the_function(method: str) -> None:
    events = events_of(method, pid_of, backend="gloo", nprocs=1)
    names = [e.name for e in events if e.rank == 0]
    before = names[1 : names.index("running")]
    fresh = ["importing", "joining", "importing"]
    assert before == (fresh if method == "spawn" else ["joining"])


def raises(rank: int, folder: Path) -> None:
    (folder / str(rank)).touch()
    if rank == 1:
        until(lambda: len(list(folder.iterdir())) == 3)  # all are in the function
        raise ValueError("no more")
    never_returns()


def test_a_replica_that_raises(method: str, tmp_path: Path) -> None:
    events = events_of(method, raises, tmp_path, nprocs=3)
    assert of(events, 1) == ["forked", "running", "raised", "exited", "verdict"]
    assert the(events, "raised").message == "ValueError: no more"
    assert the(events, "exited").exit_code == 1
    stopping = the(events, "stopping").message
    assert stopping in ("SIGTERM to ranks 0, 2", "SIGTERM to ranks 0-2")  # 1 may still be exiting
    for rank in (0, 2):
        assert of(events, rank) == ["forked", "running", "stopped"]
        assert the(events, "stopped", rank).signal == "SIGTERM"
    assert (the(events, "verdict").rank, the(events, "finished").message) == (1, "ReplicaRaised")
    assert the(events, "verdict").message.endswith("raised ValueError: no more [XMP-R01]")


def killed(rank: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    never_returns()


def test_a_replica_that_is_killed(method: str) -> None:
    events = events_of(method, killed)
    assert of(events, 0) == ["forked", "running", "died", "verdict"]
    assert (the(events, "died").signal, the(events, "died").exit_code) == ("SIGKILL", None)
    assert the(events, "finished").message == "ReplicaDied"


def test_exit_codes(method: str) -> None:
    events = events_of(method, lambda rank: os._exit(3), nprocs=1, join=True)
    assert (the(events, "died").exit_code, the(events, "died").signal) == (3, None)
    events = events_of(method, lambda rank: sys.exit(4), nprocs=1)
    assert of(events, 0) == ["forked", "running", "raised", "exited", "verdict"]
    assert the(events, "exited").exit_code == 4
    events = events_of(method, lambda rank: os._exit(0), nprocs=1)
    assert of(events, 0) == ["forked", "running", "exited"]


def stuck(rank: int) -> None:
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    never_returns()


def test_a_launch_that_takes_too_long(method: str) -> None:
    events = events_of(method, stuck, hang_timeout=1, grace=0.5)
    words = [e.message for e in events if e.name == "stopping"]
    assert words == ["SIGTERM to ranks 0-1", "SIGKILL to rank 0"]
    assert the(events, "stopped", 0).signal == "SIGKILL"
    verdict = the(events, "verdict")
    assert verdict.rank is None
    assert verdict.message.startswith("hang_timeout=1: no progress for 1 s: ranks 0-1 of 2 on ")
    assert the(events, "finished").message == "ReplicaTimeout"


def test_an_interrupt(method: str) -> None:
    events: list[xmp.Event] = []

    def interrupt(event: xmp.Event) -> None:
        events.append(event)
        if event.name == "running" and [e.name for e in events].count("running") == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        launch(method, stuck, grace=20, events=interrupt)
    checked(events)
    assert the(events, "stopping").message == "SIGINT to ranks 0-1"
    assert of(events, 1)[:4] == ["forked", "running", "raised", "exited"]
    assert the(events, "raised", 1).message.startswith("KeyboardInterrupt")


# --- where they go -----------------------------------------------------------------------------


def test_the_function_runs_in_the_thread_that_waits() -> None:
    seen = set()
    thread = threading.Thread(
        target=lambda: launch(
            "forkserver", pid_of, events=lambda e: seen.add((os.getpid(), threading.get_ident()))
        )
    )
    thread.start()
    ident = thread.ident
    thread.join()
    assert seen == {(os.getpid(), ident)}


def test_a_function_that_raises_is_reported_once(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = []

    def broken(event: xmp.Event) -> None:
        names.append(event.name)
        raise LookupError("mine")

    assert list(launch(method, lambda rank: rank, events=broken)) == [0, 1]
    err = capsys.readouterr().err
    assert err.startswith("xmp: events= failed at 'planned'; the launch continues.\nTraceback ")
    assert err.count("LookupError: mine") == 1
    assert names[-1] == "finished"


def test_a_function_may_launch_itself() -> None:
    events: list[tuple[str, str]] = []

    def inner(event: xmp.Event) -> None:
        events.append(("inner", event.name))

    def outer(event: xmp.Event) -> None:
        events.append(("outer", event.name))
        if event.name == "started":
            launch("forkserver", pid_of, nprocs=1, events=inner)

    launch("forkserver", pid_of, events=outer)
    names = [name for name in events if name[0] == "outer"]
    assert [name for _, name in names].count("finished") == 1
    assert names[-1] == ("outer", "finished")
    assert ("inner", "finished") in events


def test_without_a_join_they_come_with_it(method: str) -> None:
    events: list[xmp.Event] = []
    context = launch(method, pid_of, join=False, events=events.append)
    assert "planned" in [e.name for e in events]
    assert "finished" not in [e.name for e in events]
    context.join()
    checked(events)


def test_a_file_has_the_same_events(method: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("what was there\n")
    for given in (path, str(path)):
        launch(method, pid_of, events=given)
    first, *lines = path.read_text().splitlines()
    assert first == "what was there"
    events = [xmp.Event(**json.loads(line)) for line in lines]
    assert [e.name for e in events].count("planned") == 2
    names = [field.name for field in dataclasses.fields(xmp.Event)]
    assert all(list(json.loads(line)) == names for line in lines)
    assert {e.version for e in events} == {2}
    for launched in {e.launch_id for e in events}:
        checked([e for e in events if e.launch_id == launched])
    assert len({e.launch_id for e in events}) == 2


def test_a_full_file_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(launch("forkserver", lambda rank: rank, events="/dev/full")) == [0, 1]
    err = capsys.readouterr().err
    assert err.count("events= failed") == 1
    assert "No space left" in err


@pytest.mark.parametrize(
    ("events", "kind", "words"),
    [
        (5, TypeError, ["events", "5", "path", "function"]),
        (b"x", TypeError, ["events", "path"]),
        ("", xmp.PlanError, ["events", "path"]),
        ("/nowhere/at/all", xmp.PlanError, ["/nowhere/at/all", "No such file"]),
        ("/tmp", xmp.PlanError, ["/tmp", "directory"]),
        ("a\0b", xmp.PlanError, ["events", "null"]),
    ],
    ids=str,
)
def test_what_cannot_hear_is_refused(events: Any, kind: type[Exception], words: list[str]) -> None:
    xmp.shutdown()
    with nothing_started(), pytest.raises(kind) as caught:
        launch("forkserver", pid_of, events=events)
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value)


def test_a_start_that_fails_is_reported(method: str) -> None:
    events: list[xmp.Event] = []
    if method == "fork":  # nothing travels: the function fails
        with pytest.raises(xmp.ReplicaRaised):
            launch(method, len_of, *UNPACKABLE, events=events.append)
        assert the(events, "finished").message == "ReplicaRaised"
    else:
        with pytest.raises(TypeError):
            launch(method, len_of, *UNPACKABLE, events=events.append)
        assert [e.name for e in events] == ["planned", "finished"]
        assert the(events, "finished").message.startswith("TypeError: ")
    checked(events)


UNPACKABLE = [threading.Lock()]


def len_of(rank: int, thing: Any) -> int:
    return len(thing)


def test_one_replica_in_the_caller_has_events_too() -> None:
    events: list[xmp.Event] = []
    with nothing_started():
        xmp.spawn(pid_of, nprocs=1, runtime="cpu", events=events.append)
    checked(events)
    assert [e.name for e in events] == ["planned", "joining", "running", "returned", "finished"]
    assert {e.pid for e in events if e.rank == 0} == {os.getpid()}
    events.clear()
    with pytest.raises(ZeroDivisionError):
        xmp.spawn(lambda rank: 1 // rank, nprocs=1, runtime="cpu", events=events.append)
    assert [e.name for e in events][-2:] == ["raised", "finished"]
    assert events[-1].message.startswith("ZeroDivisionError: ")


def test_in_the_caller_a_failure_before_the_function_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "framework_that_breaks.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(runtimes.get("cpu"), "framework", "framework_that_breaks")
    events: list[xmp.Event] = []
    with pytest.raises(ZeroDivisionError):
        xmp.spawn(pid_of, nprocs=1, runtime="cpu", events=events.append)
    assert [e.name for e in events] == ["planned", "joining", "raised", "finished"]
    assert events[2].message.startswith("ZeroDivisionError: ")


STOPPED = """
import os, signal, sys, threading, time
import xmp

def fn(rank, flag):
    while not os.path.exists(flag):
        time.sleep(0.01)

def tell(event):
    print(event.name, flush=True)
    if event.name == "resumed":
        open(sys.argv[1], "w").close()

if __name__ == "__main__":
    xmp.spawn(fn, (sys.argv[1],), nprocs=2, runtime="cpu", events=tell)
"""


@pytest.mark.first_pass
def test_ctrl_z_is_an_event(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(STOPPED)
    command = [sys.executable, str(path), str(tmp_path / "flag")]
    names: list[str] = []
    # A group of its own: the kernel stops no orphaned one, as a background job may be.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=os.setpgrp
    ) as process:
        assert process.stdout is not None
        while names.count("running") < 2:
            names.append(process.stdout.readline().strip())
        process.send_signal(signal.SIGTSTP)
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T")
        process.send_signal(signal.SIGCONT)
        names += process.stdout.read().split()
        assert process.wait(20) == 0
    assert names.index("paused") < names.index("resumed") < names.index("finished")


def test_without_a_listener_no_event_is_made(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from xmp._processes.launcher.launch import Launch
    from xmp._processes.messages.launch import Events

    heard: list[Any] = []
    report = Launch._report

    def noted(launch: Launch, message: Any, files: list[int]) -> None:
        heard.extend([message] if isinstance(message, Events) else [])
        report(launch, message, files)

    monkeypatch.setattr(Launch, "_report", noted)
    launch(method, pid_of)
    assert heard == []
    launch(method, pid_of, events=os.devnull)
    assert heard
