"""gevent, eventlet, debugpy, pytest-xdist: they change forks, waits, threads of a whole process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.launching import METHODS
from tests.support.stage import Script, Stage
from tests.support.waiting import until

PROGRAM = """
import sys
if sys.argv[1] == "debugpy":
    pass  # it runs this
elif sys.argv[1] == "gevent":
    from gevent import monkey
    monkey.patch_all()
elif sys.argv[1] == "gevent without threads":
    from gevent import monkey
    monkey.patch_all(thread=False)
elif sys.argv[1] == "gevent, imported alone":
    import gevent
else:
    import eventlet
    eventlet.monkey_patch()

import signal, xmp

def fn(rank, end):
    if rank == 1 and end == "fails":
        raise ValueError("of rank 1")
    while end == "fails":
        signal.pause()  # gevent replaces other waits; xmp ends it
    return rank

if __name__ == "__main__":
    for end in sys.argv[3:]:
        try:
            print(list(xmp.spawn(fn, (end,), nprocs=2, runtime="cpu", start_method=sys.argv[2])))
        except xmp.XmpError as error:
            print(type(error).__name__, error)
"""
NOTE = "xmp: gevent.monkey.patch_all() has replaced the waits and forks of this process: replicas"


@pytest.mark.failing
@pytest.mark.parametrize("how", ["gevent", "gevent without threads"])
def test_in_a_program_that_gevent_has_patched_replicas_are_fresh(script: Script, how: str) -> None:
    ended = script(PROGRAM, how, "forkserver", "fails", "well")
    assert ended.out.startswith("ReplicaRaised rank 1 of 2")
    assert ended.out.count("ReplicaRaised") == 1
    assert ended.out.endswith("\n[0, 1]\n")
    assert ended.err.count(NOTE) == 1
    said = [line for line in ended.err.splitlines() if "the start took" not in line]  # slow hosts
    assert len(said) == 1, ended.err


@pytest.mark.parametrize("method", METHODS)
def test_gevent_that_has_patched_nothing_changes_nothing(script: Script, method: str) -> None:
    ended = script(PROGRAM, "gevent, imported alone", method, "well", "well")
    assert (ended.out, ended.err) == ("[0, 1]\n" * 2, "")


@pytest.mark.parametrize(
    ("how", "method", "words"),
    [
        ("gevent", "fork", ["gevent.monkey.patch_all()", 'use start_method="spawn"']),
        *(("eventlet", m, ["eventlet.monkey_patch()", "has not called it"]) for m in METHODS),
    ],
)
def test_where_none_can_work_one_sentence_names_the_library(
    script: Script, how: str, method: str, words: list[str]
) -> None:
    ended = script(PROGRAM, how, method, "well", "well")
    assert ended.out.count("StartError") == 2
    assert [word for word in words if word not in ended.out] == []
    assert "Traceback" not in ended.err


UNDER_XDIST = """
import pytest, xmp
from tests.support.waiting import until
from xmp._processes.system import fork_safety

def fn(rank):
    return rank

@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_spawn(method):
    assert list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=method)) == [0, 1]

def test_its_thread():
    # While the thread runs, the kernel does not say where its stack is.
    until(lambda: fork_safety.native_threads() == ["of execnet.gateway_base"], 20)
    until(lambda: fork_safety.native_threads(allow_python=True) == [], 20)
"""


def test_in_a_worker_of_xdist_whose_thread_is_one_of_python(stage: Stage) -> None:
    stage.write(UNDER_XDIST, "test_spawns.py")
    done = stage.python("-m", "pytest", "-q", "-n", "1", "test_spawns.py", timeout=60)
    assert "4 passed" in done.out, done.out


@pytest.mark.failing
@pytest.mark.parametrize("method", METHODS)
def test_under_debugpy_without_a_client_a_launch_ends(stage: Stage, method: str) -> None:
    """It listens; no client ever comes. It follows every child, and has threads in each."""
    program, out, err = (str(stage.folder / name) for name in ("train.py", "out", "err"))
    stage.write(PROGRAM, "train.py")
    debugger = f"{sys.executable} -Xfrozen_modules=off -m debugpy --listen 127.0.0.1:0"
    # Files: debugpy's adapter outlives the program, and would keep pipes open.
    shell = f"exec {debugger} {program} debugpy {method} well fails >{out} 2>{err}"
    process = stage.start_command("sh", "-c", shell)
    until(lambda: process.poll() is not None, 120, stage.alive)
    said, warned = Path(out).read_text(), Path(err).read_text()
    if method == "fork":
        assert said.count("StartError debugpy follows this process") == 2
    else:
        assert said.startswith("[0, 1]\nReplicaRaised rank 1 of 2")
    note = "xmp: debugpy follows this process and its children: replicas are fresh interpreters"
    assert warned.count(note) == (1 if method == "forkserver" else 0), warned
