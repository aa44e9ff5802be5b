"""Control returns when no process of a launch is left, or a message names what is."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import xmp
from tests.support.stage import Script
from tests.support.waiting import until
from xmp._processes.launcher import leftovers
from xmp._processes.launcher.replica_process import ReplicaProcess
from xmp._words.types import ForkRules

pytestmark = pytest.mark.failing

RULES = ForkRules(device_files=("*/accel[0-9]",))


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a device."""
    (tmp_path / "accel0").touch()
    with open(tmp_path / "accel0") as device, open(tmp_path / "data", "w") as data:
        process = subprocess.Popen(["sleep", "60"], stdin=device, stdout=data)
    yield process
    process.kill()
    process.wait()


def test_the_holder_is_named(
    holder: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(leftovers, "_WAIT_SECONDS", 0.1)
    text = leftovers.after([ReplicaProcess(3, holder.pid)], RULES)
    begin = f"process {holder.pid} (rank 3) holds {tmp_path}/accel0 and did not end by SIGKILL: "
    assert text.startswith(begin)
    assert capsys.readouterr().err == f"xmp: {text}\n"
    error = leftovers.added(leftovers.added(xmp.ReplicaDied("rank 0 died"), text), text)
    assert str(error) == f"rank 0 died [XMP-R02]\n\n{text}"


def test_what_ends_late_is_waited_for(holder: subprocess.Popen[bytes]) -> None:
    timer = threading.Timer(0.3, holder.kill)
    timer.start()
    assert leftovers.after([ReplicaProcess(0, holder.pid)], RULES) == ""
    assert holder.poll() == -signal.SIGKILL
    timer.join()


def test_whose_end_was_reported_is_not_looked_for() -> None:
    process = ReplicaProcess(0, os.getpid())
    process.reported = 0
    assert leftovers.after([process], RULES) == ""


FREEZER = Path("/sys/fs/cgroup/freezer")
FROZEN = """
import os, pathlib, sys, time
import xmp
import xmp._processes.supervisor.monitor
from xmp._plan import planner
from xmp._processes.launcher import leftovers, server_process
from xmp._rules import watch

leftovers._WAIT_SECONDS = server_process.END_WAIT = 0.5
watch.KILL_WAIT = 500_000_000  # a supervisor by fork takes it from its launcher
planner.DEVICE_FILES = (*planner.DEVICE_FILES, os.path.abspath("accel*"))
group = pathlib.Path(sys.argv[1])

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

def fn(rank):
    if rank == 0:
        device = open("accel0", "w")
    open(f"in-fn-{rank}", "w").close()
    wait_for("frozen")
    raise ValueError("now")

if __name__ == "__main__":
    context = xmp.spawn(fn, nprocs=2, runtime="cpu", join=False, grace=0.5, start_method="fork")
    wait_for("in-fn-0"), wait_for("in-fn-1")
    (group / "cgroup.procs").write_text(str(context.pids()[0]))
    (group / "freezer.state").write_text("FROZEN")
    while (group / "freezer.state").read_text().strip() != "FROZEN":
        time.sleep(0.01)
    open("frozen", "w").close()
    try:
        context.join()
    except xmp.ReplicaRaised as error:
        said = [line for line in str(error).splitlines() if line.startswith("process ")]
        print(said[0].replace(str(context.pids()[0]), "PID"))
    print(list(xmp.spawn(abs, nprocs=2, runtime="cpu")))
    (group / "freezer.state").write_text("THAWED")
"""


@pytest.mark.root
@pytest.mark.first_pass
@pytest.mark.skipif(not FREEZER.is_dir(), reason="no control group that freezes (version 1)")
def test_a_replica_that_cannot_be_killed_does_not_keep_the_launcher(
    script: Script, tmp_path: Path
) -> None:
    group = FREEZER / f"xmp-test-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        done = script(FROZEN, str(group), cwd=tmp_path, timeout=40)
    finally:
        (group / "freezer.state").write_text("THAWED")
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
    first, second = done.out.splitlines()
    assert first.startswith(f"process PID (rank 0) holds {tmp_path}/accel0 and did not end "), done
    assert second == "[0, 1]"
