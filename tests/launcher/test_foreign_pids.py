"""Launchers whose pids name strangers, in /proc or as children report them: they are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.launcher.test_pid_one import can_make_pid_namespaces
from tests.support.launching import METHODS
from tests.support.stage import Stage

pytestmark = [
    pytest.mark.failing,
    pytest.mark.root,
    pytest.mark.skipif(not can_make_pid_namespaces(), reason="no pid namespaces here"),
]

MOUNT_IT = "/proc belongs to another pid namespace"
CHILDREN_LEAVE = "new processes of this one go to another pid namespace"

# The first namespace has its own /proc, which the second one sees: there "2" is the parent of
# "3" to "42", here a launcher beside strangers of these pids.
OUTER = """
    import os, subprocess, sys, time
    import in_script

    def sleeper():
        return os.fork() or in_script.never_returns()

    second = os.fork()
    if second == 0:
        for _ in range(40):
            sleeper()
        in_script.never_returns()
    assert second == 2
    def children():
        with open("/proc/2/task/2/children") as file:
            return [int(pid) for pid in file.read().split()]
    while len(children()) < 40:
        time.sleep(0.01)
    assert children() == [*range(3, 43)]
    inner = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, *sys.argv[1:]]
    sys.exit(subprocess.run(inner).returncode)
"""
INNER = """
    import os, signal, sys
    import in_script

    def attempt(call):
        try:
            return list(call() or [])
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def next_pid():
        child = os.fork() or os._exit(0)
        os.waitpid(child, 0)
        return child

    def be_launcher():
        import xmp
        from xmp._processes.system import processes
        from xmp._os.probe import launches

        before = next_pid()
        said = {
            method: attempt(lambda: xmp.spawn(abs, nprocs=2, runtime="cpu", start_method=method))
            for method in ("forkserver", "spawn", "fork")
        }
        said["bare"] = attempt(lambda: xmp.start_processes(abs, nprocs=2))
        said["preload"] = attempt(lambda: xmp.preload("numpy"))
        said["here"] = attempt(lambda: xmp.spawn(abs, nprocs=1, runtime="cpu"))
        in_script.say(**said, made=next_pid() - before - 1)
        own = os.getpid()
        in_script.say(
            children=processes.children(own), ended=sorted(processes.end_descendants()),
            known=[processes.is_stopped(3), processes.is_zombie(3)], seen=len(launches.processes()),
        )

    def be_users():
        import contextlib, io
        from xmp.__main__ import main
        for word in ("doctor", "clean", "stacks"):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = main([word])
            in_script.say(**{word: [code, out.getvalue()]})

    if __name__ == "__main__":
        wait, go = os.pipe()
        launcher = os.fork()
        if launcher == 0:
            os.read(wait, 1)
            be_launcher()
            be_users()
            os._exit(0)
        assert launcher == 2
        for _ in range(40):
            os.fork() or in_script.never_returns()
        os.write(go, b"x")
        code = os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1])
        killed = 0
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)) is not None:
            killed += 1
        in_script.say(code=code, killed=killed)
"""
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def test_with_the_proc_of_an_outer_namespace_no_stranger_is_signalled(stage: Stage) -> None:
    """A launch is refused before any process exists, and so are the commands that send signals."""
    outer, inner = stage.write(OUTER, "outer.py"), stage.write(INNER, "inner.py")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = (*NAMESPACE, sys.executable, str(outer), str(inner))
    outcome = stage.outcome(stage.start_command(*command, **pipes), 60)
    said = outcome.said
    assert said["killed"] == 0, said
    assert (outcome.code, said["code"]) == (0, 0), outcome
    for how in ("forkserver", "spawn", "fork", "bare", "preload"):
        assert said[how].startswith(f"StartError: {MOUNT_IT}"), said
        assert "unshare --mount-proc" in said[how]
    assert said["made"] == 0
    assert said["here"] == [0]
    nothing = {"children": [], "ended": [], "known": [False, False], "seen": 0}
    assert {name: said[name] for name in nothing} == nothing
    for word in ("doctor", "clean", "stacks"):
        code, text = said[word]
        assert code == 1, text
        assert MOUNT_IT in text
    assert f"problem: {MOUNT_IT}" in said["doctor"][1]
    stage.gone()


# --- /proc of a namespace that does not see the launcher -----------------------------------------

UNSEEN = """
    import ctypes, os, subprocess, sys, time
    import in_script

    def attempt(method):
        import xmp
        try:
            return list(xmp.spawn(abs, nprocs=2, runtime="cpu", start_method=method))
        except xmp.StartError as error:
            return str(error)

    if __name__ == "__main__":
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sleep", "60"]
        with subprocess.Popen(command) as above:
            while not (found := in_script.descendants(above.pid)):
                time.sleep(0.01)
            while in_script.comm(found[0]) != "sleep":
                time.sleep(0.01)
            mounts = os.open(f"/proc/{found[0]}/ns/mnt", os.O_RDONLY)
            assert ctypes.CDLL(None).setns(mounts, 0x00020000) == 0  # CLONE_NEWNS
            in_script.say(self=os.path.exists("/proc/self"), one=in_script.comm(1))
            in_script.say(**{m: attempt(m) for m in ("forkserver", "spawn", "fork")})
            above.kill()
"""


def test_with_the_proc_of_an_inner_namespace_a_launch_is_refused(stage: Stage) -> None:
    """/proc/self leads nowhere there, but /proc/1 is another process: "nsenter --mount" alone."""
    said = stage.run(UNSEEN).said
    assert (said["self"], said["one"]) == (False, "sleep")
    for method in METHODS:
        assert said[method].startswith(MOUNT_IT), said


# --- launchers and modules that send their children elsewhere ------------------------------------

AWAY = """
    import ctypes, os, subprocess, sys
    import in_script, xmp

    NEWPID = 0x20000000
    libc = ctypes.CDLL(None)

    def attempt(call, *arguments, **options):
        try:
            return list(call(*arguments, **options) or [])
        except xmp.StartError as error:
            return str(error)

    def spawn(method):
        return attempt(xmp.spawn, abs, nprocs=2, runtime="cpu", start_method=method)

    if __name__ == "__main__":
        own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        in_script.say(before=spawn("forkserver"))
        assert libc.unshare(NEWPID) == 0
        in_script.say(first={m: spawn(m) for m in ("forkserver", "spawn", "fork")})
        assert subprocess.run(["true"]).returncode == 0  # it was pid 1: from now on a fork fails
        in_script.say(second={m: spawn(m) for m in ("forkserver", "spawn", "fork")})
        in_script.say(preload=attempt(xmp.preload, "json"))
        assert libc.setns(own, NEWPID) == 0
        in_script.say(back={m: spawn(m) for m in ("forkserver", "spawn", "fork")})
"""


def test_a_launcher_whose_children_go_to_another_namespace_is_refused(stage: Stage) -> None:
    said = stage.run(AWAY).said
    assert said["before"] == [0, 1]
    refused = [*said["first"].values(), *said["second"].values(), said["preload"]]
    assert len(refused) == 7
    assert all(str(text).startswith(CHILDREN_LEAVE) for text in refused), said
    assert all(said["back"][method] == [0, 1] for method in METHODS), said


LEAVES = """
    import ctypes
    with open("/proc/self/comm") as file:
        if file.read().strip() in {where}:
            assert ctypes.CDLL(None).unshare(0x20000000) == 0  # CLONE_NEWPID
"""
USES = """
    import json, os
    import leaves, xmp

    def fn(rank):
        return rank, os.getppid() > 0

    if __name__ == "__main__":
        print(json.dumps(list(xmp.spawn(fn, nprocs=2, runtime="cpu"))))
"""


def test_a_script_whose_import_sends_children_away_gets_fresh_interpreters(stage: Stage) -> None:
    stage.write(LEAVES.format(where='("xmp-script",)'), "leaves.py")
    outcome = stage.run(USES)
    assert outcome.json() == [[0, True], [1, True]]
    assert "a fork is not safe (new processes go to another pid namespace)" in outcome.err


def test_a_template_whose_imports_send_its_children_away_is_refused(stage: Stage) -> None:
    """Its supervisors would report "1" to the launcher: to signal that is to signal init."""
    folder = stage.folder / "installed"
    stage.write(LEAVES.format(where='("xmp-template",)'), "installed/leaves.py")
    source = """
        import xmp
        if __name__ == "__main__":
            xmp.preload("leaves")
            try:
                print(list(xmp.spawn(abs, nprocs=2, runtime="cpu")))
            except xmp.StartError as error:
                print(error)
    """
    path = ":".join(map(str, (folder, *stage.path)))
    outcome = stage.run(source, env={"PYTHONPATH": path})
    assert CHILDREN_LEAVE in outcome.out
