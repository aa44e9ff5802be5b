"""`xmp clean` ends what launches have left behind, and nothing else; `xmp doctor` shows it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.in_script import is_alive, parent, state
from tests.support.launching import METHODS
from tests.support.stage import Stage
from tests.support.waiting import until
from xmp._os.proc import alive
from xmp._processes.system import linux
from xmp._processes.system.processes import HeldProcess

pytestmark = [pytest.mark.failing, pytest.mark.alone]  # it ends what others leave on purpose

SOURCE = """
    import os, signal, subprocess, sys, time
    import in_script, xmp

    def note(name):
        with open(name + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(name + ".new", name)

    def daemon():
        '''As daemons do: double fork, its own session, no descriptors.'''
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 4096)
                note("forked")
                in_script.never_returns()
            os._exit(0)

    def escaping(rank):
        if rank == 0:
            daemon()
            shell = "echo $$ > executed.new; mv executed.new executed; exec sleep 600"
            subprocess.Popen(["setsid", "--fork", "sh", "-c", shell])
        while not (os.path.exists("forked") and os.path.exists("executed")):
            time.sleep(0.01)
        note(f"in-fn-{rank}")
        in_script.never_returns()

    def saving(rank):
        signal.signal(signal.SIGTERM, lambda *_: (note(f"saved-{rank}"), os._exit(0)))
        note(f"in-fn-{rank}")
        in_script.never_returns()

    def patient(rank):
        note(f"patient-{rank}")
        while not os.path.exists("go"):
            time.sleep(0.02)
        return rank

    if __name__ == "__main__":
        method, name = sys.argv[1:]
        try:
            xmp.spawn(globals()[name], nprocs=2, runtime="cpu", start_method=method)
        except xmp.XmpError:
            note("failed")
        print(list(xmp.spawn(patient, nprocs=2, runtime="cpu", start_method=method)))
"""


def xmp(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xmp", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def running(stage: Stage, method: str, name: str) -> subprocess.Popen[str]:
    process = stage.start(SOURCE, method, name)
    wait_for(stage, "in-fn", process)
    return process


def wait_for(stage: Stage, name: str, process: subprocess.Popen[str]) -> None:
    stage.reached(process, *(f"{name}-{rank}" for rank in range(2)))


def parts(stage: Stage, process: subprocess.Popen[str]) -> set[int]:
    """What of a launch that is "escaping" stays until it ends; its template's forks come and go."""
    named = ("forked", "executed", "in-fn-0", "in-fn-1")
    return {process.pid, *stage.supervisors(), *(pid_in(stage.folder / name) for name in named)}


def pid_in(path: Path) -> int:
    return int(path.read_text())


def engine(stage: Stage) -> list[int]:
    return stage.named("xmp-template", "xmp-script", "xmp-supervisor", "xmp-keeper", "xmp-spare")


def kill(*pids: int) -> None:
    """Stopped first, so that none of them sees another one die."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # a template's fork that has ended
                os.kill(pid, number)


def numbers(text: str, words: str) -> set[int]:
    """The pids of the lines that begin so."""
    lines = [line for line in text.splitlines() if line.startswith(words)]
    return {int(line.partition("pid ")[2].split()[0]) for line in lines}


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """Another session of these tests would end what is left behind here on purpose."""
    with open(Path(tempfile.gettempdir(), f"xmp-tests-clean-{os.geteuid()}"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Stage]:
    """A launch of the same user that runs meanwhile, and has escaped grandchildren too."""
    folder = tmp_path / "neighbour"
    folder.mkdir()
    stage = Stage(folder)
    try:
        process = running(stage, "forkserver", "escaping")
        before = parts(stage, process)
        yield stage
        assert before <= stage.alive().keys()
    finally:
        stage.end()


@pytest.mark.parametrize("method", METHODS)
def test_escaped_grandchildren_of_a_launch_that_was_killed(
    stage: Stage, neighbour: Stage, method: str
) -> None:
    process = running(stage, method, "escaping")
    escaped = {pid_in(stage.folder / "forked"), pid_in(stage.folder / "executed")}
    kill(process.pid, *engine(stage))
    process.wait(10)
    until(lambda: stage.alive().keys() == escaped, 5, "nothing but the escaped")
    shown = xmp("doctor")
    assert escaped <= numbers(shown.stdout, "warning: left by an earlier launch: ")
    assert "python -m xmp clean" in shown.stdout
    planned = xmp("clean", "--dry-run")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert escaped <= numbers(planned.stdout, "would end ")
    assert numbers(planned.stdout, "would end ").isdisjoint(neighbour.alive())
    assert stage.alive().keys() == escaped
    cleaned = xmp("clean")
    assert (cleaned.returncode, cleaned.stderr) == (0, "")
    assert escaped <= numbers(cleaned.stdout, "ended ")
    assert not stage.alive()


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_engine_leaves_replicas_which_are_asked_first(
    stage: Stage, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is left that could end them: the launcher is dead, the others do not notice.

    Where the kernel can send a signal at the end of a lifeline, none would stay.
    """
    monkeypatch.setenv("XMP_WITHOUT", "setsig")
    process = running(stage, method, "saving")
    stopped = engine(stage)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all(state(pid) == "T" for pid in stopped), 5, "stopped")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    asked = xmp("stacks", str(process.pid))
    assert f"pid {process.pid}: 2 replicas" not in asked.stderr  # it is no running launch
    cleaned = xmp("clean")
    assert cleaned.returncode == 0, cleaned
    assert re.search(r"xmp-\S+ of \S+/script\d+\.py", cleaned.stdout)
    wanted = {pid_in(stage.folder / f"in-fn-{rank}") for rank in range(2)} | set(stopped)
    assert wanted <= numbers(cleaned.stdout, "ended ")
    assert all((stage.folder / f"saved-{rank}").exists() for rank in range(2))
    stage.gone()


def test_what_a_living_launcher_has_left_behind(stage: Stage) -> None:
    """Its supervisor and its template were killed; it goes on, and so does its next launch."""
    process = running(stage, "forkserver", "escaping")
    escaped = {pid_in(stage.folder / "forked"), pid_in(stage.folder / "executed")}
    kill(*engine(stage))
    wait_for(stage, "patient", process)
    cleaned = xmp("clean")
    assert cleaned.returncode == 0, cleaned
    assert escaped <= numbers(cleaned.stdout, "ended ")
    assert not any(is_alive(pid) for pid in escaped)
    (stage.folder / "go").touch()
    outcome = stage.outcome(process)
    assert (outcome.code, outcome.out.strip()) == (0, "[0, 1]"), outcome
    assert (stage.folder / "failed").exists()
    stage.gone()


def test_a_running_launch_whose_template_was_killed_is_left_alone(stage: Stage) -> None:
    process = running(stage, "forkserver", "escaping")
    above = stage.named("xmp-template", "xmp-script")
    (supervisor,) = stage.supervisors()
    kill(*above)
    until(lambda: parent(supervisor) not in above, 5, "an orphan")
    until(lambda: not any(is_alive(pid) for pid in above), 5, "killed")
    before = parts(stage, process)
    assert numbers(xmp("clean").stdout, "ended ").isdisjoint(before)
    assert numbers(xmp("doctor").stdout, "warning: left by").isdisjoint(before)
    assert before <= stage.alive().keys()
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.wait(20)
    stage.gone()


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.root
@pytest.mark.skipif(not FREEZER.is_dir(), reason="no control group that freezes (version 1)")
def test_the_truth_about_what_is_frozen(stage: Stage) -> None:
    """What the control group holds cannot end before it is let go."""
    group = FREEZER / f"xmp-test-{stage.token}"
    process = running(stage, "forkserver", "saving")
    group.mkdir()
    try:
        frozen = set()
        for pid in stage.alive().keys() - {process.pid}:
            with contextlib.suppress(ProcessLookupError):  # a template's fork that has ended
                (group / "cgroup.procs").write_text(str(pid))
                frozen.add(pid)
        (group / "freezer.state").write_text("FROZEN")
        until(lambda: (group / "freezer.state").read_text().strip() == "FROZEN", 5, "frozen")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        cleaned = xmp("clean")
        named = numbers(cleaned.stdout, "ended ") | numbers(cleaned.stdout, "does not end ")
        assert frozen <= named
        held = {pid for pid in frozen if is_alive(pid)}
        assert held == frozen & numbers(cleaned.stdout, "does not end (SIGKILL was sent):")
        assert cleaned.returncode == bool(held)
    finally:
        (group / "freezer.state").write_text("THAWED")
        stage.gone(seconds=10)
        until(lambda: removed(group), 10, "the group is empty")


def removed(group: Path) -> bool:
    """A process leaves its group a moment after its parent has its status."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.mark.parametrize("without", ["", "pidfd"])
def test_a_number_that_means_another_process_by_now_gets_no_signal(
    monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    monkeypatch.setattr(linux, "_without", {without})
    with subprocess.Popen(["sleep", "60"]) as process:
        now = alive(process.pid)
        assert now is not None
        assert HeldProcess.hold(now._replace(started=now.started - 1)) is None
        held = HeldProcess.hold(now)
        assert held is not None
        assert held.lives
        process.kill()
        process.wait()
        assert not held.lives
        held.signal(signal.SIGTERM)
        held.close()
