"""Whose a process is: a mark counts where the kernel vouches for it; else the process is shown."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands.test_clean import alone, numbers, xmp
from tests.launcher.test_pid_one import can_make_pid_namespaces
from tests.support.in_script import is_alive
from tests.support.stage import Stage
from tests.support.waiting import until
from xmp._os import marks
from xmp._os.probe.carried import claims, vouched
from xmp._os.probe.launches import ROOT, leftovers
from xmp._processes.system import interpreter, launcher_mark, processes

__all__ = ["alone"]  # the fixture: other sessions must not end what is left behind here

pytestmark = [pytest.mark.failing, pytest.mark.alone]  # `xmp clean` ends what others leave

READY = """
print("ready", flush=True)
while True:
    signal.pause()
"""
MARKED = """
import os, signal, sys
from xmp._processes.system import launcher_mark
launcher_mark.leave(sys.argv[1])
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
"""
NO_LIMIT = """
import resource
resource.prlimit(0, 10, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
# argv: name of the file, access, uid of its maker
MAPS = """
import ctypes, os, signal, sys
name, access, maker = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.seteuid(maker)
file = os.open(name, os.O_RDWR | os.O_CREAT) if "/" in name else os.memfd_create(name)
os.seteuid(os.getuid())
os.truncate(file, 4096)
mmap = ctypes.CDLL(None)["mmap"]
mmap.restype = ctypes.c_void_p
mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
assert mmap(None, 4096, access, 1, file, 0) != 2**64 - 1
os.close(file)
"""
READ_AND_WRITE, NONE = "3", "0"


def gone(mark: marks.Mark | None = None) -> marks.Mark:
    """Of a launcher whose number another process has got: this one."""
    mark = mark or marks.mine()
    return replace(mark, started=mark.started - 1)


@contextlib.contextmanager
def running(program: str, *arguments: object, **variables: str) -> Iterator[int]:
    command = [sys.executable, "-c", program + READY, *map(str, arguments)]
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def judged(pid: int) -> str:
    """Whether this process would be ended, or shown, and for which reason."""
    found = leftovers(settle=0.1)
    doubts = {each.process.pid: each.doubt for each in found.doubtful}
    proven = pid in {process.pid for process in found.proven}
    assert not (proven and pid in doubts)
    return "proven" if proven else doubts.get(pid, "")


def judged_without_rights(pid: int) -> list[str]:
    """The doubts of a user who may not look at the files behind a process's mappings."""
    program = (
        "import json, sys; from pathlib import Path; from xmp._os.probe.carried import claims; "
        "print(json.dumps([each.doubt for each in claims(int(sys.argv[1]), Path('/'))]))"
    )
    drop = ["setpriv", "--bounding-set=-sys_admin,-checkpoint_restore"]
    command = [*(drop if os.geteuid() == 0 else ()), sys.executable, "-c", program, str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def verdict(program: str, *arguments: object, **variables: str) -> str:
    with running(program, *arguments, **variables) as pid:
        return judged(pid)


# --- marks of ours -----------------------------------------------------------------------------


def test_the_number_of_a_launcher_alone_is_no_name() -> None:
    mine = marks.mine()
    assert marks.Mark.parse(str(mine)) == mine
    assert verdict(MARKED, mine) == ""
    assert verdict(MARKED, gone()) == "proven"
    assert verdict(MARKED, replace(gone(), boot="another")) == ""
    assert verdict(MARKED, replace(gone(), space="1")) == ""
    assert verdict(MARKED, "") == ""


@pytest.mark.parametrize("without", ["", "memfd"])
def test_page_and_limit_are_enough_each(without: str) -> None:
    """Without memory files the page has a temporary file, which proves nothing alone."""
    assert verdict(MARKED, gone(), XMP_WITHOUT=without) == "proven"
    page = "a mapped file" if without else "proven"
    assert verdict(MARKED + NO_LIMIT, gone(), XMP_WITHOUT=without) == page


def test_a_program_that_a_replica_has_executed_keeps_variable_and_limit() -> None:
    executes = MARKED + "os.execv(sys.executable, [sys.executable, '-c', sys.argv[2]])"
    executes = executes.replace("if len(sys.argv) > 2", "if False")
    variables = {marks.VARIABLE: str(gone())}
    program = "import signal" + READY
    assert verdict(executes, gone(), program, **variables) == "proven"
    assert verdict(executes, gone(), program) == "a resource limit"
    other = {marks.VARIABLE: str(gone(gone()))}
    assert verdict(executes, gone(), program, **other) == "a resource limit"


def test_no_process_descends_from_a_younger_launcher() -> None:
    late = replace(marks.mine(), pid=os.getpid(), started=marks.mine().started + 10**6)
    assert verdict(MARKED, late) == ""


@pytest.mark.root
def test_processes_of_another_user_are_not_ours_to_end() -> None:
    assert verdict(MARKED, gone(), 65534) == ""


# --- what others can make ------------------------------------------------------------------------


def test_a_copied_environment_proves_no_descent() -> None:
    """Neither in a job that a replica submits nor in a container whose score is raised."""
    mark = gone()
    sleeps = "import signal"
    assert verdict(sleeps, **{marks.VARIABLE: str(mark)}) == ""
    own = int(Path("/proc/self/oom_score_adj").read_text())
    variables = {marks.VARIABLE: str(replace(mark, score=own))}
    assert verdict(sleeps, **variables) == "its environment"


def test_a_file_with_the_name_of_a_mark_proves_no_descent(tmp_path: Path) -> None:
    name = f"{marks.PAGE}{gone()}"
    for access in (READ_AND_WRITE, NONE):
        assert verdict(MAPS, tmp_path / name, access, os.geteuid()) == "a mapped file"
    other = tmp_path / f"memfd:{name} (deleted)"
    assert verdict(MAPS, other, NONE, os.geteuid()) == "a mapped file"


def test_a_memory_file_that_a_process_was_handed_proves_no_descent() -> None:
    """As a compositor maps the buffers of its clients: it means to read them."""
    name = f"{marks.PAGE}{gone()}"
    with running(MAPS, name, READ_AND_WRITE, os.geteuid()) as pid:
        assert judged(pid) == "a mapped file"
        assert judged_without_rights(pid) == ["a mapped file"]
    with running(MAPS, name, NONE, os.geteuid()) as pid:
        assert judged(pid) == "proven"
        assert judged_without_rights(pid) == [""]


@pytest.mark.root
def test_a_memory_file_of_another_user_proves_no_descent() -> None:
    assert verdict(MAPS, f"{marks.PAGE}{gone()}", NONE, 65534) == "a mapped file"


@pytest.mark.parametrize("text", ["", "\u00b2.1.a.b.300", "1.2.a.b.--3", "1.2.a.b", "-1.2.a.b.3"])
def test_a_name_that_is_no_mark_stops_no_look(tmp_path: Path, text: str) -> None:
    with running(MAPS, tmp_path / f"{marks.PAGE}{text}", READ_AND_WRITE, os.geteuid()) as pid:
        assert not vouched(pid, ROOT)
        assert judged(pid) in ("", "a mapped file")


def test_doctor_and_clean_show_what_may_be_a_strangers() -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    mark = replace(gone(), score=own)
    with running("import signal", **{marks.VARIABLE: str(mark)}) as pid:
        shown = xmp("doctor").stdout
        assert pid in numbers(shown, "warning: may be left by an earlier launch: ")
        assert f"its environment alone names the launch of process {mark.pid}" in shown
        for arguments in (["clean", "--dry-run"], ["clean"]):
            done = xmp(*arguments)
            assert done.returncode == 0
            assert pid in numbers(done.stdout, "not ended: ")
            assert pid not in numbers(done.stdout, "ended ") | numbers(done.stdout, "would end ")
        assert is_alive(pid)


# --- the program that a mark names ---------------------------------------------------------------


def test_a_program_is_shown_as_plain_text() -> None:
    mark = replace(gone(), program="train.py\x1b[2J\n\u202e")
    with running(MARKED, mark):
        shown = xmp("clean", "--dry-run").stdout
    assert "train.py?[2J??" in shown
    assert "\x1b" not in shown


# --- before the first line of ours ---------------------------------------------------------------


def test_an_interpreter_that_never_comes_to_our_first_line_is_shown(tmp_path: Path) -> None:
    """Where its launcher was killed before it could mark it."""
    (tmp_path / "sitecustomize.py").write_text("import signal\nsignal.pause()\n")
    command = interpreter.fresh_interpreter("xmp._processes.template.template_main", "main", 3, 4)
    variables = {"PYTHONPATH": str(tmp_path), marks.VARIABLE: str(gone())}
    with subprocess.Popen(command, env={**os.environ, **variables}) as process:
        try:
            assert judged(process.pid) == "its environment"
            launcher_mark.leave_on_child(process.pid, str(gone()))
            assert judged(process.pid) == "proven"
        finally:
            process.kill()


STUCK = """
    import os, signal
    import xmp

    if __name__ == "__main__":
        os.register_at_fork(after_in_child=signal.pause)
        xmp.spawn(abs, nprocs=2, runtime="cpu", start_method={method!r})
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_the_launcher_marks_what_may_never_come_to_its_first_line(
    stage: Stage, method: str
) -> None:
    hook = "import os, signal\nif 'XMP_LAUNCHER' in os.environ: signal.pause()\n"
    stage.write(hook, "stuck/sitecustomize.py")
    path = ":".join(map(str, (stage.folder / "stuck", *stage.path)))
    process = stage.start(STUCK.format(method=method), env={"PYTHONPATH": path})

    def marked() -> list[int]:
        below = processes.children(process.pid)
        return [p for p in below if process.pid in {c.launcher[0] for c in claims(p, ROOT)}]

    until(marked, 10, "a marked child")
    (child,) = marked()
    assert judged(child) == ""
    process.kill()
    process.wait(10)
    shown = "a resource limit" if method == "fork" else "proven"
    assert judged(child) == shown or not is_alive(child)
    stage.end()


@pytest.mark.root
@pytest.mark.skipif(not can_make_pid_namespaces(), reason="the kernel refuses pid namespaces here")
def test_a_limit_alone_means_nothing_in_another_namespace() -> None:
    for command, doubt in (
        (["sleep", "60"], "a resource limit"),
        (["unshare", "--pid", "--fork", "--kill-child", "sleep", "60"], ""),
    ):
        with subprocess.Popen(command) as process:
            try:
                pid = process.pid
                if not doubt:
                    until(lambda p=pid: processes.children(p), 5, "a child in a namespace")
                    (pid,) = processes.children(pid)
                launcher_mark.leave_on_child(pid, str(gone()))
                assert judged(pid) == doubt
            finally:
                process.kill()
