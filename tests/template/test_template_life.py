"""Templates that are switched off, killed, stopped, idle, preloaded or replaced."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.stage import Stage
from tests.support.waiting import until
from xmp._processes.system.processes import is_gone

pytestmark = pytest.mark.failing

HEAD = """
    import os, signal, sys, threading, time
    import in_script, xmp
    from waiting import until

    def work(rank, seconds=0.0):
        time.sleep(seconds)
        return [rank, in_script.template_above(), "torch" in sys.modules, "jax" in sys.modules]

    def spawn(*args, **options):
        return list(xmp.spawn(work, args, nprocs=2, runtime="cpu", **options))
"""


def test_switched_off_leaves_no_process_after_a_launch(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        for _ in range(3):
            spawn()
            in_script.say(left=in_script.belongings()["processes"])
            assert in_script.belongings()["processes"] == []
        xmp.preload("json")
        in_script.say(after_preload=in_script.belongings()["processes"])
    """
    )
    said = stage.run(source, env={"XMP_TEMPLATE": "off"}).said
    assert said == {"left": [], "after_preload": []}


def test_killed_while_idle(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        for _ in range(3):
            found = spawn()
            in_script.say(ranks=[each[0] for each in found], template=found[0][1])
            assert in_script.templates() == [found[0][1]]
            os.kill(found[0][1], signal.SIGKILL)
            until(lambda: not in_script.is_alive(found[0][1]))
        xmp.shutdown()
        in_script.say(left=in_script.belongings()["processes"])
    """
    )
    said = stage.run(source).said
    assert said["ranks"] == [0, 1]
    assert said["left"] == []


@pytest.mark.parametrize("moment", ["supervisor", "script", "both"])
def test_killed_while_a_launch_runs(stage: Stage, moment: str) -> None:
    """The launch goes on, its results arrive, and the next one starts another template."""
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        first = spawn()[0][1]
        context = xmp.spawn(work, (0.7,), nprocs=2, runtime="cpu", join=False)
        victims = {"supervisor": ["xmp-template"], "script": ["xmp-script"]}
        for name in victims.get(sys.argv[1], ["xmp-template", "xmp-script"]):
            for pid in in_script.called(name):
                os.kill(pid, signal.SIGKILL)
        in_script.say(results=[each[0] for each in context.results()])
        again = spawn()
        in_script.say(again=[each[0] for each in again], other=again[0][1] != first)
        xmp.shutdown()
        in_script.say(left=in_script.belongings()["processes"])
    """
    )
    outcome = stage.run(source, moment)
    said = outcome.said
    assert said["results"] == said["again"] == [0, 1]
    assert "does not answer" not in outcome.err
    assert said["left"] == []
    assert said["other"] == (moment != "script")


def test_a_killed_keeper_does_not_hide_that_the_supervisor_still_ends(stage: Stage) -> None:
    """Control returns when it has, though no process is left to report it."""
    stage.write(
        """
        import atexit, time
        # It waits for nothing: an end that takes this long is what is waited for.
        run = atexit._run_exitfuncs
        atexit._run_exitfuncs = lambda: (time.sleep(0.5), run())
        """,
        "sitecustomize.py",
    )
    source = """
        import os, signal, time
        import in_script, xmp

        def work(rank):
            while not os.path.exists("go"):
                time.sleep(0.005)
            return rank

        if __name__ == "__main__":
            context = xmp.spawn(work, nprocs=2, runtime="cpu", start_method="spawn", join=False)
            supervisor = in_script.parent(context.pids()[0])
            (keeper,) = in_script.called("xmp-keeper")
            os.kill(keeper, signal.SIGKILL)
            open("go", "w").close()
            in_script.say(results=list(context.results()), alive=in_script.is_alive(supervisor))
    """
    path = os.pathsep.join([str(stage.folder), stage.environment()["PYTHONPATH"]])
    said = stage.run(source, env={"PYTHONPATH": path}).said
    assert said == {"results": [0, 1], "alive": False}


def test_killed_while_it_starts(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        xmp.preload("torch")
        (template,) = in_script.called("xmp-template") or in_script.children()
        os.kill(template, signal.SIGKILL)
        in_script.say(ranks=[each[0] for each in spawn()])
    """
    )
    assert stage.run(source).said["ranks"] == [0, 1]


@pytest.mark.parametrize("who", ["xmp-template", "xmp-script"])
def test_stopped_while_idle_is_killed_and_named(stage: Stage, who: str) -> None:
    """A template that does not answer within 5 s after a deadline is not waited for."""
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        spawn()
        for pid in in_script.called(sys.argv[1]):
            os.kill(pid, signal.SIGSTOP)
        try:
            in_script.say(ranks=[each[0] for each in spawn()])
        except xmp.StartError as error:
            in_script.say(error=str(error))
        in_script.say(again=[each[0] for each in spawn()])
    """
    )
    outcome = stage.run(source, who, timeout=40)
    assert outcome.said["again"] == [0, 1]
    assert outcome.said.get("ranks") == [0, 1] or "does not answer" in outcome.err


@pytest.mark.slow
def test_stopped_while_a_launch_ends(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        spawn()
        context = xmp.spawn(work, (0.3,), nprocs=2, runtime="cpu", join=False)
        for pid in in_script.called("xmp-template"):
            os.kill(pid, signal.SIGSTOP)
        in_script.say(ranks=[each[0] for each in context.results()])
        in_script.say(again=[each[0] for each in spawn()])
    """
    )
    said = stage.run(source, timeout=60).said
    assert said["ranks"] == said["again"] == [0, 1]


@pytest.mark.parametrize("without", [""])
def test_a_replaced_template_ends_when_its_launch_has(stage: Stage, without: str) -> None:
    source = (
        HEAD
        + """
    def released(rank):
        while not os.path.exists("release"):
            time.sleep(0.01)
        return work(rank)

    if __name__ == "__main__":
        context = xmp.spawn(released, nprocs=2, runtime="cpu", join=False)
        (first,) = in_script.templates()
        for value in "1", "2", "3":
            os.environ["JAX_USERS_" + value] = value
            spawn()
        in_script.say(during=in_script.is_alive(first))
        open("release", "w").close()
        results = context.results()
        in_script.say(results=[each[0] for each in results], template=results[0][1] == first)
        until(lambda: not in_script.is_alive(first), 10, "the end of the replaced template")
        in_script.say(after=in_script.is_alive(first), templates=len(in_script.templates()))
    """
    )
    said = stage.run(source, env={"XMP_WITHOUT": without}).said
    assert said["during"]
    assert said["results"] == [0, 1]
    assert said["template"]
    assert not said["after"]
    assert said["templates"] == 2


def test_idle_for_too_long_ends_it(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        from xmp._processes.launcher import fork_server_handle
        fork_server_handle._IDLE_SECONDS = 0.3
        first = spawn()[0][1]
        until(lambda: not in_script.is_alive(first), 15, "the end of the idle template")
        in_script.say(alive=in_script.is_alive(first), again=[each[0] for each in spawn()])
    """
    )
    said = stage.run(source).said
    assert not said["alive"]
    assert said["again"] == [0, 1]


def test_preloaded_before_the_imports_is_used_after_them(stage: Stage) -> None:
    """`import jax` writes the environment: after it, the template must still fit."""
    source = """
        import xmp, in_script
        xmp.preload("torch", "jax")
        started = in_script.children()
        import os, sys, torch, jax, time

        def work(rank):
            return [in_script.template_above(), in_script.forked()]

        if __name__ == "__main__":
            before = in_script.called("xmp-template")
            for runtime in ("cpu", "jax", "cpu"):
                found = list(xmp.spawn(work, nprocs=2, runtime=runtime))
                in_script.say(**{runtime: found, "templates": in_script.templates()})
            in_script.say(started=started)
    """
    said = stage.run(source, timeout=60).said
    (template,) = said["started"]
    assert said["templates"] == [template]
    assert said["cpu"] == said["jax"] == [[template, True]] * 2


def test_it_is_idle_and_single_threaded(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        xmp.preload("numpy", "numpy.random")
        spawn()
        (template,) = in_script.templates()
        (script,) = in_script.called("xmp-script")
        while not in_script.called("xmp-spare"):
            time.sleep(0.01)
        used = lambda: sum(in_script.cpu_ticks(pid) for pid in (template, script))
        before = used()
        time.sleep(1.0)  # what is measured is what happens while nothing happens
        in_script.say(ticks=used() - before,
                      threads=[len(os.listdir(f"/proc/{p}/task")) for p in (template, script)],
                      groups=[os.getpgid(p) == p for p in (template, script)],
                      sessions=[os.getsid(p) != os.getsid(0) for p in (template, script)])
    """
    )
    said = stage.run(source).said
    assert said["ticks"] <= 1
    assert said["threads"] == [1, 1]
    assert said["groups"] == [True, True]
    assert said["sessions"] == [True, True]


def test_what_the_launcher_ignores_or_blocks_does_not_reach_it(stage: Stage) -> None:
    """With SIGCHLD ignored, exit codes would be lost; a blocked SIGTERM would stay blocked."""
    source = (
        HEAD
        + """
    def fail(rank):
        os._exit(7)

    def wait(rank):
        if rank == 0:
            raise ValueError("the cause")
        in_script.never_returns()

    if __name__ == "__main__":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGALRM])
        in_script.say(ranks=[each[0] for each in spawn()])
        try:
            xmp.spawn(fail, nprocs=2, runtime="cpu")
        except xmp.ReplicaDied as error:
            in_script.say(code=error.exit_code)
        (template,) = in_script.templates()
        in_script.say(masks=[number in in_script.signals(template, field)
                             for field in ("SigBlk", "SigIgn")
                             for number in (signal.SIGCHLD, signal.SIGALRM)])
        try:
            xmp.spawn(wait, nprocs=2, runtime="cpu", grace=600)
        except xmp.ReplicaRaised as error:
            in_script.say(signal=error.failures[1].signal_name)
        in_script.say(own=signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN)
    """
    )
    said = stage.run(source).said
    assert said["ranks"] == [0, 1]
    assert said["code"] == 7
    assert said["masks"] == [False] * 4
    assert said["signal"] == "SIGTERM"
    assert said["own"]


def test_its_group_is_not_the_launchers(stage: Stage) -> None:
    """A signal to the launcher's group (Jupyter's interrupt) must not end the template."""
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        first = spawn()[0][1]
        try:
            open("ready", "w").close()
            in_script.never_returns()
        except KeyboardInterrupt:
            in_script.say(same=spawn()[0][1] == first)
    """
    )
    process = stage.start(source)
    stage.reached(process, "ready")
    os.killpg(process.pid, signal.SIGINT)
    outcome = stage.outcome(process)
    assert outcome.said["same"], outcome.err

    stage.gone()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("what", ["missing", "silent", "speaking"])
def test_an_interpreter_that_does_not_come_up(stage: Stage, method: str, what: str) -> None:
    """The error shows what the process has said, and how it ended."""
    source = """
    import os, sys, time
    import multiprocessing, in_script, xmp

    def work(rank):
        return rank

    if __name__ == "__main__":
        method, path = sys.argv[1:]
        multiprocessing.set_executable(path)
        for _ in range(5):
            try:
                xmp.spawn(work, nprocs=2, runtime="cpu", start_method=method)
            except xmp.StartError as error:
                in_script.say(error=str(error))
        in_script.say(left=in_script.belongings()["processes"])
    """
    path = stage.folder / "interpreter"
    if what != "missing":
        words = "echo no licence for this interpreter >&2" if what == "speaking" else "true"
        path.write_text(f"#!/bin/sh\n{words}\nexit 3\n")
        path.chmod(0o755)
    said = stage.run(source, method, str(path)).said
    assert str(path) in said["error"] if what == "missing" else said["error"]
    if what == "speaking":
        assert "no licence" in said["error"]
    assert said["left"] == []


def test_its_launcher_left_a_child_of_c_code(stage: Stage) -> None:
    """Such a child holds copies of connection and lifeline, which then stay open."""
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        import ctypes
        spawn()
        child = ctypes.CDLL(None).fork()
        if child == 0:
            ctypes.CDLL(None).sleep(60)
            ctypes.CDLL(None)._exit(0)
        in_script.say(child=child, templates=in_script.templates())
        os.kill(os.getpid(), signal.SIGKILL)
    """
    )
    said = stage.outcome(stage.start(source)).said
    child, (template,) = said["child"], said["templates"]
    try:
        until(lambda: is_gone(template), 10, "the template has ended")
    finally:
        os.kill(child, signal.SIGKILL)
    stage.gone()
