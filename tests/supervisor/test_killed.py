"""Launcher, supervisor or replica killed at any moment: within a second nothing of it is left."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.launching import METHODS
from tests.support.process_tree import RUN, TREE, running
from tests.support.stage import Stage

pytestmark = pytest.mark.failing


@pytest.mark.parametrize("method", METHODS)
def test_launcher_killed_while_replicas_run(stage: Stage, method: str) -> None:
    launcher = running(stage, method, "both")
    assert len(stage.alive()) > 5
    os.kill(launcher, signal.SIGKILL)
    stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_supervisor_killed(stage: Stage, method: str) -> None:
    """The launcher says what happened, in bounded time; the template takes the orphans in."""
    source = (
        TREE
        + """
    if __name__ == "__main__":
        method = sys.argv[1]
        try:
            xmp.spawn(both, nprocs=3, runtime="cpu", start_method=method)
        except xmp.XmpError as error:
            in_script.say(raised=f"{type(error).__name__}: {error}")
        left = in_script.belongings()["processes"]
        again = list(xmp.spawn(quick, nprocs=2, runtime="cpu", start_method=method))
        in_script.say(left=left, again=again)
    """
    )
    running(stage, method, source=source)
    (supervisor,) = stage.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    outcome = stage.outcome(stage.last)
    assert outcome.code == 0, outcome.err
    said = outcome.said
    assert "supervisor" in said["raised"]
    assert "SIGKILL" in said["raised"]
    assert said["again"] == [0, 1]
    assert set(said["left"]) <= {"xmp-template", "xmp-script"}
    stage.gone()
    assert "does not answer" not in outcome.err


@pytest.mark.parametrize(
    ("method", "without"),
    # Keepers watch alike, whichever way they were made.
    [*((method, "") for method in METHODS), ("forkserver", "pidfd"), ("spawn", "pidfd")],
)
def test_launcher_killed_while_the_supervisor_is_stopped(
    stage: Stage, method: str, without: str
) -> None:
    """It cannot notice that its launcher is gone: the process that forked it ends it."""
    launcher = running(stage, method, "sleeping", env={"XMP_WITHOUT": without})
    (supervisor,) = stage.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(launcher, signal.SIGKILL)
    stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_replica_killed(stage: Stage, method: str) -> None:
    source = (
        TREE
        + """
    def victim(rank):
        in_script.leave_daemon()
        open(f"in-fn-{rank}", "w").close()
        while rank != 1 or not all(os.path.exists(f"in-fn-{each}") for each in range(3)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        method = sys.argv[1]
        try:
            xmp.spawn(victim, nprocs=3, runtime="cpu", start_method=method)
        except xmp.ReplicaDied as error:
            in_script.say(rank=error.rank, signal=error.signal_name)
            in_script.say(left=in_script.belongings()["processes"])
    """
    )
    outcome = stage.run(source, method)
    assert outcome.said["rank"] == 1
    assert outcome.said["signal"] == "SIGKILL"
    assert set(outcome.said["left"]) <= {"xmp-template", "xmp-script"}


def test_semaphores_and_shared_memory_of_a_killed_launcher_go(stage: Stage) -> None:
    """multiprocessing's tracker clears them away when the last holder of its pipe has ended."""
    source = (
        TREE
        + """
    import multiprocessing
    from multiprocessing import shared_memory

    def holding(rank, *args):
        sleeping(rank)

    if __name__ == "__main__":
        before = set(os.listdir("/dev/shm"))
        context = multiprocessing.get_context("spawn")
        memory = shared_memory.SharedMemory(create=True, size=1 << 20)
        args = (context.Lock(), context.Queue(), context.Event(), memory)
        made = set(os.listdir("/dev/shm")) - before - in_script.foreign_memory()
        in_script.say(made=sorted(made))
        xmp.spawn(holding, args, nprocs=3, runtime="cpu", start_method=sys.argv[1])
    """
    )
    for method in METHODS:
        for rank in range(3):
            (stage.folder / f"in-fn-{rank}").unlink(missing_ok=True)
        os.kill(running(stage, method, source=source), signal.SIGKILL)
        made = stage.outcome(stage.last).said["made"]
        assert made
        stage.gone()
        left = [name for name in made if os.path.exists(f"/dev/shm/{name}")]
        assert not left


@pytest.mark.parametrize(
    ("method", "victim"),
    [
        *((method, "launcher") for method in METHODS),
        ("forkserver", "replica"),
        ("fork", "replica"),  # it has copies of what the launcher had open
    ],
)
def test_launches_within_launches_end_too(stage: Stage, method: str, victim: str) -> None:
    """The inner launch has its own template and supervisor, in other sessions."""
    source = (
        TREE
        + """
    def inner(rank, outer):
        in_script.leave_daemon()
        open(f"in-fn-{outer}-{rank}", "w").close()
        in_script.never_returns()

    def outer(rank):
        open(f"pid-{rank}", "w").write(str(os.getpid()))
        xmp.spawn(inner, (rank,), nprocs=2, runtime="cpu")

    if __name__ == "__main__":
        try:
            xmp.spawn(outer, nprocs=2, runtime="cpu", start_method=sys.argv[1])
        except xmp.ReplicaDied as error:
            in_script.say(rank=error.rank)
    """
    )
    process = stage.start(source, method)
    stage.reached(process, *(f"in-fn-{outer}-{rank}" for outer in range(2) for rank in range(2)))
    if victim == "launcher":
        process.kill()
        process.wait()
    else:
        os.kill(int((stage.folder / "pid-0").read_text()), signal.SIGKILL)
        outcome = stage.outcome(process)
        assert outcome.said["rank"] == 0, outcome.err
    stage.gone()


@pytest.mark.parametrize("victim", ["launcher", "supervisor"])
@pytest.mark.parametrize("runtime", ["cpu", "jax"])
def test_killed_while_replicas_wait_for_each_other(stage: Stage, runtime: str, victim: str) -> None:
    """In a collective that never ends, with the frameworks' own threads up."""
    source = (
        TREE
        + """
    def collective(rank):
        xmp.init_process_group()
        xmp.all_reduce(1.0)
        open(f"in-fn-{rank}", "w").close()
        if rank != 2:
            xmp.all_reduce(1.0)
        in_script.never_returns()

    if __name__ == "__main__":
        xmp.preload({"cpu": "torch"}.get(sys.argv[1], sys.argv[1]))
        xmp.spawn(collective, nprocs=3, runtime=sys.argv[1])
    """
    )
    launcher = running(stage, runtime, source=source)
    os.kill(launcher if victim == "launcher" else stage.supervisors()[0], signal.SIGKILL)
    outcome = stage.outcome(stage.last)
    assert victim == "launcher" or "SIGKILL" in outcome.err
    stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_what_a_replica_leaves_running_ends_with_the_launch(stage: Stage, method: str) -> None:
    source = (
        TREE
        + """
    def leaves(rank):
        in_script.leave_daemon()
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"],
                         start_new_session=True)
        return rank

    def closes(rank):
        '''As daemons do: every descriptor that is not its own.'''
        os.closerange(3, 1024)
        in_script.leave_daemon()
        open(f"in-fn-{rank}", "w").close()
        in_script.never_returns()

    if __name__ == "__main__":
        results = list(xmp.spawn(leaves, nprocs=3, runtime="cpu", start_method=sys.argv[1]))
        in_script.say(results=results, left=in_script.belongings()["processes"])
        xmp.spawn(closes, nprocs=3, runtime="cpu", start_method=sys.argv[1])
    """
    )
    running(stage, method, source=source)
    os.kill(stage.last.pid, signal.SIGKILL)
    said = stage.outcome(stage.last).said
    assert said["results"] == [0, 1, 2]
    assert set(said["left"]) <= {"xmp-template", "xmp-script"}
    stage.gone()


@pytest.mark.parametrize("end", ["return", "raise", "os._exit", "daemon"])
def test_launchers_that_end_without_join(stage: Stage, end: str) -> None:
    """As with multiprocessing: a normal end waits for what is no daemon; another takes it along."""
    source = (
        TREE
        + """
    def brief(rank):
        open(f"in-fn-{rank}", "w").close()
        while not os.path.exists("release"):
            time.sleep(0.005)
        open(f"done-{rank}", "w").close()

    if __name__ == "__main__":
        end = sys.argv[1]
        context = xmp.spawn(brief, nprocs=3, runtime="cpu", join=False, daemon=end == "daemon")
        while len([n for n in os.listdir(".") if n.startswith("in-fn")]) < 3:
            time.sleep(0.005)
        if end not in ("daemon", "os._exit"):
            open("release", "w").close()
        if end == "raise":
            raise ValueError("any")
        elif end == "os._exit":
            os._exit(0)
    """
    )
    outcome = stage.run(source, end, ok=end != "raise")
    done = len(list(stage.folder.glob("done-*")))
    assert done == (0 if end in ("daemon", "os._exit") else 3), outcome.err


WITHOUT = "pidfd,memfd,close_range,subreaper,setsig,pdeathsig"
NO_DAEMON = TREE.replace("in_script.leave_daemon()", "pass") + RUN


@pytest.mark.parametrize(
    ("method", "without"),
    [*((method, WITHOUT) for method in METHODS), ("forkserver", "setsig,pdeathsig")],
)
def test_launcher_killed_on_a_kernel_that_can_less(stage: Stage, method: str, without: str) -> None:
    """A watcher thread instead of a kernel-armed lifeline; orphans of orphans are not promised."""
    launcher = running(stage, method, "native", source=NO_DAEMON, env={"XMP_WITHOUT": without})
    os.kill(launcher, signal.SIGKILL)
    stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_supervisor_killed_on_a_kernel_that_can_less(stage: Stage, method: str) -> None:
    running(stage, method, "sleeping", source=NO_DAEMON, env={"XMP_WITHOUT": WITHOUT})
    (supervisor,) = stage.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    outcome = stage.outcome(stage.last)
    assert "supervisor" in outcome.err
    assert "does not answer" not in outcome.err
    stage.gone()
