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

def fn(rank):
    if rank == 1 and sys.argv[3] == "fails":
        raise ValueError("of rank 1")
    while sys.argv[3] == "fails":
        signal.pause()  # gevent replaces other waits; xmp ends it
    return rank

if __name__ == "__main__":
    for _ in range(1 if sys.argv[1] == "debugpy" else 2):
        try:
            print(list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[2])))
        except xmp.XmpError as error:
            print(type(error).__name__, error)
"""
NOTE = "xmp: gevent.monkey.patch_all() has replaced the waits and forks of this process: replicas"


@pytest.mark.failing
@pytest.mark.parametrize("ends", ["well", "fails"])
@pytest.mark.parametrize("how", ["gevent", "gevent without threads"])
def test_in_a_program_that_gevent_has_patched_replicas_are_fresh(
    script: Script, how: str, ends: str
) -> None:
    ended = script(PROGRAM, how, "forkserver", ends)
    if ends == "well":
        assert ended.out == "[0, 1]\n" * 2
    else:
        assert ended.out.count("ReplicaRaised rank 1 of 2") == 2
    assert ended.err.count(NOTE) == 1
    assert ended.err.count("\n") == 1, ended.err


@pytest.mark.parametrize("method", METHODS)
def test_gevent_that_has_patched_nothing_changes_nothing(script: Script, method: str) -> None:
    ended = script(PROGRAM, "gevent, imported alone", method, "well")
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
    ended = script(PROGRAM, how, method, "well")
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
@pytest.mark.parametrize("ends", ["well", "fails"])
@pytest.mark.parametrize("method", METHODS)
def test_under_debugpy_without_a_client_a_launch_ends(stage: Stage, method: str, ends: str) -> None:
    """It listens; no client ever comes. It follows every child, and has threads in each."""
    program, out, err = (str(stage.folder / name) for name in ("train.py", "out", "err"))
    stage.write(PROGRAM, "train.py")
    debugger = f"{sys.executable} -Xfrozen_modules=off -m debugpy --listen 127.0.0.1:0"
    # Files: debugpy's adapter outlives the program, and would keep pipes open.
    shell = f"exec {debugger} {program} debugpy {method} {ends} >{out} 2>{err}"
    process = stage.start_command("sh", "-c", shell)
    until(lambda: process.poll() is not None, 60, stage.alive)
    said, warned = Path(out).read_text(), Path(err).read_text()
    if method == "fork":
        assert said.startswith("StartError debugpy follows this process")
    elif ends == "well":
        assert said == "[0, 1]\n"
    else:
        assert said.startswith("ReplicaRaised rank 1 of 2")
    note = "xmp: debugpy follows this process and its children: replicas are fresh interpreters"
    assert warned.count(note) == (1 if method == "forkserver" else 0), warned
