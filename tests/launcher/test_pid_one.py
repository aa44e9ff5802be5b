"""A launcher that is pid 1 of a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.in_script import signals
from tests.support.stage import Stage
from tests.support.waiting import until

pytestmark = pytest.mark.failing

INIT = """
    import os, signal, subprocess, sys, time
    import in_script, xmp
    from waiting import until

    def orphan(rank):
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(0.05)
            os._exit(0)
        return os.getpid()

    def waiting(rank):
        open(f"in-fn-{rank}", "w").close()
        in_script.never_returns()

    if __name__ == "__main__":
        in_script.say(own=os.getpid())
        for method in ("forkserver", "spawn", "fork"):
            in_script.say(**{method: len(list(xmp.spawn(orphan, nprocs=3, runtime="cpu",
                                                        start_method=method)))})
        xmp.shutdown()
        until(lambda: not in_script.belongings()["processes"], 10, "the end of all processes")
        in_script.say(left=in_script.belongings()["processes"])
        xmp.spawn(waiting, nprocs=2, runtime="cpu")
"""


def can_make_pid_namespaces() -> bool:
    if sys.platform != "linux":
        return False
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.root
@pytest.mark.skipif(not can_make_pid_namespaces(), reason="the kernel refuses pid namespaces here")
def test_the_launcher_may_be_pid_one(stage: Stage) -> None:
    """Orphans are reaped; SIGTERM, which the kernel keeps from pid 1, ends the launch."""
    source = """
        import os, sys
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable]
        os.execvp("unshare", [*command, os.environ["INNER"]])
    """
    inner = stage.write(INIT)
    process = stage.start(source, env={"INNER": str(inner)})
    stage.in_function(process, 2)
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        (launcher,) = map(int, file.read().split())
    # Without a handler the kernel would drop it.
    until(lambda: signal.SIGTERM in signals(launcher, "SigCgt"), 10, "the launcher waits")
    os.kill(launcher, signal.SIGTERM)
    outcome = stage.outcome(process, 20)
    said = outcome.said
    assert said["own"] == 1
    assert said["forkserver"] == said["spawn"] == said["fork"] == 3
    assert said["left"] == []
    stage.gone()
