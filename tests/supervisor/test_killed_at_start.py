"""The launcher is killed at any moment of the start: within a second nothing is left."""

from __future__ import annotations

import time

import pytest

from tests.support.launching import METHODS
from tests.support.process_tree import TREE, running
from tests.support.stage import Stage
from tests.support.waiting import until

pytestmark = pytest.mark.failing

MOMENTS = (
    TREE
    + """
    import time
    if os.environ.get("SLOW_IMPORT"):
        time.sleep(0.3)  # in launcher and supervisor: something to be killed in

    def brief(rank):
        in_script.leave_daemon()
        time.sleep(0.2)  # in replicas: the same

    if __name__ == "__main__":
        method = sys.argv[1]
        open("begun", "w").close()
        for _ in range(100):
            xmp.spawn(brief, nprocs=3, runtime="cpu", start_method=method)
"""
)


@pytest.mark.parametrize("method", METHODS)
def test_launcher_killed_at_any_moment(stage: Stage, method: str) -> None:
    """From template import to shutdown and the next start: the delays walk through it all."""
    for step, delay in enumerate((0.0, 0.05, 0.12, 0.25, 0.5)):
        begun = stage.folder / "begun"
        begun.unlink(missing_ok=True)
        process = stage.start(MOMENTS, method, env={"SLOW_IMPORT": "1"} if step % 2 else {})
        stage.reached(process, "begun")
        time.sleep(delay)  # not a condition: the moment itself is what varies
        process.kill()
        process.wait()
        stage.gone()


def test_launcher_killed_while_the_template_imports(stage: Stage) -> None:
    """Python reads no pipe in the middle of ``import torch``: the kernel ends the process."""
    source = """
        import in_script, xmp
        xmp.preload("torch", "jax", "sklearn")
        open("begun", "w").close()
        in_script.never_returns()
    """
    for delay in (0.0, 0.2, 0.5, 1.0):
        (stage.folder / "begun").unlink(missing_ok=True)
        process = stage.start(source)
        stage.reached(process, "begun")
        time.sleep(delay)
        process.kill()
        process.wait()
        stage.gone()


def test_launcher_killed_while_the_script_is_imported(stage: Stage) -> None:
    """The supervisor's side is in native code with the GIL held, in the script's import."""
    source = """
        import ctypes, os, sys, time, xmp

        def work(rank):
            pass

        if __name__ != "__main__":
            open("importing", "w").close()
            ctypes.PyDLL(None).sleep(60)
        else:
            xmp.spawn(work, nprocs=2, runtime="cpu")
    """
    process = stage.start(source)
    until((stage.folder / "importing").exists, 20, "the import")
    process.kill()
    process.wait()
    stage.gone()


def test_launcher_killed_while_arguments_load(stage: Stage) -> None:
    source = """
        import ctypes, xmp

        class Slow:
            def __getstate__(self):
                return {"any": 1}

            def __setstate__(self, state):
                open("loading", "w").close()
                ctypes.PyDLL(None).sleep(60)

        def work(rank, slow):
            pass

        if __name__ == "__main__":
            xmp.spawn(work, (Slow(),), nprocs=2, runtime="cpu")
    """
    process = stage.start(source)
    stage.reached(process, "loading")
    process.kill()
    process.wait()
    stage.gone()


@pytest.mark.parametrize("kind", ["Process", "Pool", "fork", "subprocess", "libc"])
def test_children_of_the_launcher_that_outlive_it_hold_no_lifeline(stage: Stage, kind: str) -> None:
    """A child that was forked after the start has copies of every descriptor of ours."""
    source = (
        TREE
        + """
    import multiprocessing

    def outlive():
        open("outliving", "w").close()
        in_script.never_returns()

    if __name__ == "__main__":
        context = xmp.spawn(sleeping, nprocs=3, runtime="cpu", join=False)
        fork = multiprocessing.get_context("fork")
        if sys.argv[1] == "Process":
            fork.Process(target=outlive).start()
        elif sys.argv[1] == "Pool":
            fork.Pool(2).apply_async(outlive)
        elif sys.argv[1] == "fork":
            if os.fork() == 0:
                outlive()
        elif sys.argv[1] == "libc":  # a library's own fork: Python's hooks do not run
            if ctypes.CDLL(None).fork() == 0:
                outlive()
        else:
            code = "import signal; open('outliving', 'w').close(); signal.pause()"
            subprocess.Popen([sys.executable, "-c", code], close_fds=False)
        context.join()
    """
    )
    running(stage, kind, source=source)
    launcher = stage.last
    stage.reached(launcher, "outliving")
    launcher.kill()
    launcher.wait()
    stage.gone(*stage.OURS, *(f"xmp-replica-{rank}" for rank in range(3)))
    left = stage.alive()
    assert 1 <= len(left) <= 2, left  # the launcher's own children, no replica
