"""Hosts that lack what a launch needs: one clear error, and nothing of xmp's in the traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.stage import Outcome, Script, Stage

PROGRAM = """
import sys, xmp

def fn(rank):
    return rank

if __name__ == "__main__":
    print(list(xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1])))
"""
CAPABILITIES = "-all,+dac_override,+dac_read_search"  # to read the interpreter, and no others
AS_A_USER = (
    *("setpriv", "--reuid=54321", "--clear-groups", f"--inh-caps={CAPABILITIES}"),
    *(f"--ambient-caps={CAPABILITIES}", f"--bounding-set={CAPABILITIES}"),
)
METHODS = ("forkserver", "spawn", "fork")


def one_error(ended: Outcome) -> str:
    """The last words of a program that ended by one StartError, with no frame below its call."""
    assert ended.code == 1, ended
    assert ended.err.count("Traceback (most recent call last)") == 1, ended.err
    assert ended.err.count('File "') == 1, ended.err  # the call's: no frame of xmp
    _, found, words = ended.err.partition("xmp.StartError: ")
    assert found, ended.err
    return words


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("files", [12, 16, 20, 24, 32])
def test_few_open_files(script: Script, files: int, method: str) -> None:
    words = one_error(script(PROGRAM, method, shell_before=f"ulimit -n {files}"))
    assert f"may have {files}" in words
    assert "ulimit -n" in words or "ulimit -Hn" in words


@pytest.mark.parametrize("method", METHODS)
def test_enough_open_files(script: Script, method: str) -> None:
    assert script(PROGRAM, method, shell_before="ulimit -n 40").out == "[0, 1]\n"


@pytest.mark.alone  # the kernel counts all processes of the user
@pytest.mark.root
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_few_processes(stage: Stage, processes: int, method: str) -> None:
    path = stage.write(PROGRAM)
    stage.folder.chmod(0o777)
    command = f"ulimit -u {processes}; exec {sys.executable} {path} {method}"
    ended = stage.outcome(run(stage, *AS_A_USER, "bash", "-c", command))
    if method == "fork" and processes == 4:
        assert ended.code == 0 or "replica 1 of 2 could not be started" in ended.err
        return
    words = one_error(ended)
    assert any(
        what in words for what in ("could not be started", "cannot start", "could not be fo")
    )
    assert f"{processes} processes (ulimit -u)" in words


@pytest.mark.root
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ("umount -l /proc", "/proc is not there: xmp watches its processes"),
        ("mount -t tmpfs none /dev", "/dev/null: No such file or directory"),
    ],
)
def test_no_proc_and_no_dev_null(stage: Stage, taken: str, words: str, method: str) -> None:
    path = stage.write(PROGRAM)
    command = f"mount --make-rprivate / && {taken} && exec {sys.executable} {path} {method}"
    ended = stage.outcome(run(stage, "unshare", "-m", "sh", "-c", command))
    assert one_error(ended).startswith(words)


def run(stage: Stage, *command: str) -> subprocess.Popen[str]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return stage.start_command(*command, **pipes)
