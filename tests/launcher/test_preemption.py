"""SIGTERM of the launcher: replicas that ask agree on when to end, all others are ended."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.support import in_script
from tests.support.launching import METHODS
from tests.support.stage import Outcome, Stage
from tests.support.waiting import until

pytestmark = pytest.mark.failing

HEAD = """
    import json, os, signal, subprocess, sys, threading, time
    import in_script, xmp

    def note(name, text=""):
        part = f"{name}.{os.getpid()}.part"  # two ranks may write the same note
        with open(part, "w") as file:
            file.write(text)
        os.rename(part, name)

    def wait_for(name):
        while not os.path.exists(name):
            time.sleep(0.005)

    def unequal(rank):
        '''Each at its own speed, without waiting for another.'''
        steps = 0
        while not xmp.preempted():
            steps += 1
            time.sleep(0.002 * (rank + 1))
            if steps == 5:
                note(f"in-fn-{rank}")
        assert xmp.preempted()
        return steps

    def together(rank):
        xmp.init_process_group()
        steps = 0
        while not xmp.preempted():
            steps += 1
            assert xmp.all_reduce(1) == 3
            if steps == 20:
                note(f"in-fn-{rank}")
        return steps

    def some_only(rank):
        '''Rank 0 has ended, rank 1 has asked once and never again, rank 2 never asks.'''
        steps = 0
        while rank == 0 and steps < 3 or rank > 2 and not xmp.preempted():
            steps += 1
            xmp.preempted() if rank == 0 else time.sleep(0.002)
            if steps == 5:
                note(f"in-fn-{rank}")
        if rank < 3:
            if rank == 1:
                xmp.preempted()
            note(f"in-fn-{rank}")
        if rank in (1, 2):
            wait_for("in-fn-4")
            wait_for(f"go-{rank}")
        return steps

    def waiting(rank):
        note(f"in-fn-{rank}")
        while True:
            signal.pause()

    def helped(rank):
        '''Has a child in its own group, and a handler that looks whether it still works.'''
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

        def end(*_):
            time.sleep(0.1)
            note(f"child-{rank}", str(child.poll()))
            sys.exit()

        signal.signal(signal.SIGTERM, end)
        waiting(rank)

    def deaf(rank):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        waiting(rank)

    def asks_but_stays(rank):
        '''Would go on for ever.'''
        while True:
            if xmp.preempted():
                note(f"preempted-{rank}")
            time.sleep(0.005)
            note(f"in-fn-{rank}")

    def fails_when_asked(rank):
        note(f"attempt-{xmp.restart_count()}")
        while not xmp.preempted():
            time.sleep(0.005)
            note(f"in-fn-{rank}")
        raise ValueError("no time to save")

    def with_a_child(rank):
        steps = 0
        while not xmp.preempted():
            steps += 1
            pid = os.fork()
            if pid == 0:
                os._exit(xmp.preempted())
            assert os.waitpid(pid, 0)[1] == 0
            if steps == 3:
                note(f"in-fn-{rank}")
        return steps

    def launch(fn, count, method, **options):
        try:
            results = xmp.spawn(fn, nprocs=count, runtime="cpu", start_method=method, **options)
            in_script.say(results=list(results))
        except xmp.ReplicaError as error:
            in_script.say(error=str(error), history=len(error.history))
        in_script.say(preempted=xmp.preempted(), left=in_script.belongings()["processes"],
                      handler=signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
MAIN = """
    if __name__ == "__main__":
        options = {"grace": 5.0, **json.loads(sys.argv[4])}
        launch(globals()[sys.argv[1]], int(sys.argv[2]), sys.argv[3], **options)
"""


class Ran:
    """A launcher whose replicas are in their function."""

    def __init__(
        self, stage: Stage, fn: str, count: int, method: str, main: str = MAIN, options: str = "{}"
    ) -> None:
        self.stage = stage
        self.process: subprocess.Popen[str] = stage.start(
            HEAD + main, fn, str(count), method, options
        )
        self.wait_for(*(f"in-fn-{rank}" for rank in range(count)))

    def wait_for(self, *names: str) -> None:
        self.stage.reached(self.process, *names)

    def send(self, number: int = signal.SIGTERM) -> None:
        """Once the launcher waits."""
        self.waits()
        self.process.send_signal(number)

    def waits(self) -> None:
        """It has a handler for SIGTERM then, and the supervisor's report that all have started."""
        until(
            lambda: signal.SIGTERM in in_script.signals(self.process.pid, "SigCgt"), 10, "a handler"
        )

    def outcome(self) -> Outcome:
        return self.stage.outcome(self.process)


# --- replicas that ask --------------------------------------------------------------------------


@pytest.mark.parametrize("fn", ["unequal", "together"])
@pytest.mark.parametrize("method", METHODS)
def test_all_hear_it_at_the_same_call(stage: Stage, method: str, fn: str) -> None:
    ran = Ran(stage, fn, 3, method)
    ran.send()
    outcome = ran.outcome()
    assert outcome.code == 0, outcome
    said = outcome.said
    assert len(set(said["results"])) == 1, said
    assert said["results"][0] >= 5
    assert said["preempted"] is True
    assert said["handler"] is True
    assert set(said["left"]) <= {"xmp-template", "xmp-script"}
    stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_replicas_that_ended_or_never_asked_are_not_waited_for(stage: Stage, method: str) -> None:
    ran = Ran(stage, "some_only", 5, method)
    ran.send()
    (stage.folder / "go-1").touch()  # has asked: until it ends the others wait for its next call
    (stage.folder / "go-2").touch()
    said = ran.outcome().said
    assert said["results"][3] == said["results"][4] >= 5


def test_a_child_of_a_replica_is_not_asked(stage: Stage) -> None:
    ran = Ran(stage, "with_a_child", 2, "forkserver")
    ran.send()
    outcome = ran.outcome()
    assert outcome.code == 0, outcome
    assert len(set(outcome.said["results"])) == 1


def test_a_second_sigterm_ends_replicas_that_stay(stage: Stage) -> None:
    ran = Ran(stage, "asks_but_stays", 2, "forkserver")
    ran.send()
    ran.wait_for("preempted-0", "preempted-1")
    ran.send()
    assert ran.outcome().code == -signal.SIGTERM
    stage.gone()


def test_a_preempted_launch_is_not_restarted(stage: Stage) -> None:
    ran = Ran(stage, "fails_when_asked", 2, "forkserver", options='{"max_restarts": 3}')
    ran.send()
    said = ran.outcome().said
    assert "no time to save" in said["error"]
    assert said["history"] == 0
    assert said["preempted"] is True
    assert not (stage.folder / "attempt-1").exists()


# --- those that do not --------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_replica_that_never_asks_gets_the_signal(stage: Stage, method: str) -> None:
    """The main processes first: their helpers work until they end."""
    ran = Ran(stage, "helped", 2, method)
    ran.send()
    assert ran.outcome().code == -signal.SIGTERM
    assert [(stage.folder / f"child-{rank}").read_text() for rank in range(2)] == ["None"] * 2
    stage.gone()


def test_a_replica_that_ignores_it_is_killed_after_grace(stage: Stage) -> None:
    ran = Ran(stage, "deaf", 2, "forkserver", options='{"grace": 0.5}')
    ran.send()
    outcome = ran.outcome()
    assert outcome.code == -signal.SIGTERM
    assert outcome.seconds >= 0.4
    stage.gone()


def test_a_stopped_supervisor_does_not_keep_the_launcher(stage: Stage) -> None:
    ran = Ran(stage, "deaf", 2, "forkserver")
    ran.waits()
    (supervisor,) = stage.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    until(lambda: in_script.state(supervisor) == "T", 5, "the supervisor stopped")
    ran.send()
    outcome = ran.outcome()
    assert outcome.code == -signal.SIGTERM
    stage.gone()


OWN_HANDLER = """
    if __name__ == "__main__":
        signal.signal(signal.SIGTERM, lambda *_: note("handled"))
        launch(unequal_until_released, 2, sys.argv[3])
"""
RELEASED = """
    def unequal_until_released(rank):
        note(f"in-fn-{rank}")
        while not os.path.exists("handled"):
            if xmp.preempted():
                return "preempted"
            time.sleep(0.005)
        return "released"
"""


def test_a_handler_of_the_program_is_left_alone(stage: Stage) -> None:
    ran = Ran(stage, "none", 2, "forkserver", main=RELEASED + OWN_HANDLER)
    ran.send()
    said = ran.outcome().said
    assert said["results"] == ["released"] * 2
    assert said["preempted"] is False
    assert said["handler"] is False


LIBRARY = """
    import faulthandler

    def of_ray(*_):
        sys.exit(7)

    if __name__ == "__main__":
        of_ray.__module__ = "ray._private.node"
        signal.signal(signal.SIGTERM, of_ray)
        faulthandler.register(signal.SIGTERM, chain=True)
        print(list(xmp.spawn(unequal, nprocs=2, runtime="cpu")) > [0, 0], flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_handler_of_a_library_waits_also_where_the_kernel_calls_it(stage: Stage) -> None:
    """Ray's, which aborts 3 s later; here faulthandler, which prints: once, after the launch."""
    process = stage.start(HEAD + LIBRARY)
    stage.reached(process, "in-fn-0", "in-fn-1")
    process.send_signal(signal.SIGTERM)
    outcome = stage.outcome(process)
    assert (outcome.code, outcome.out) == (7, "True\n"), outcome
    assert outcome.err.count("(most recent call first)") == 1, outcome


WHILE_IT_ENDS = """
    def interrupted(*_):
        raise TimeoutError

    def fails(rank):
        signal.signal(signal.SIGTERM, lambda *_: note(f"ending-{rank}"))
        note(f"in-fn-{rank}")
        if rank == 1 and sys.argv[1] == "failure":
            wait_for("go")
            raise ValueError("shard 7 has no labels")
        while True:
            signal.pause()

    if __name__ == "__main__":
        signal.signal(signal.SIGALRM, interrupted)
        xmp.spawn(fails, nprocs=2, runtime="cpu", grace=1.5)
"""


@pytest.mark.parametrize("why", ["failure", "exception"])
def test_while_xmp_ends_the_launch_for_another_reason(stage: Stage, why: str) -> None:
    ran = Ran(stage, why, 2, "forkserver", main=WHILE_IT_ENDS)
    if why == "failure":
        (stage.folder / "go").touch()
    else:
        ran.send(signal.SIGALRM)
    ran.wait_for("ending-0")
    ran.send()
    outcome = ran.outcome()
    assert outcome.code == -signal.SIGTERM
    assert ("ValueError: shard 7 has no labels" in outcome.err) is (why == "failure")
    stage.gone()


IN_A_THREAD = """
    if __name__ == "__main__":
        thread = threading.Thread(target=launch, args=(waiting, 2, sys.argv[3]))
        thread.start()
        thread.join()
"""


def test_a_launch_of_another_thread_ends_with_the_program(stage: Stage) -> None:
    """Python lets only the main thread have handlers."""
    ran = Ran(stage, "none", 2, "forkserver", main=IN_A_THREAD)
    ran.process.terminate()
    assert ran.outcome().code == -signal.SIGTERM
    stage.gone()


TWO = """
    if __name__ == "__main__":
        other = xmp.spawn(unequal, nprocs=2, runtime="cpu", join=False)
        launch(other_names, 2, "forkserver")
        in_script.say(other=list(other.results()))
"""
OTHER_NAMES = """
    def other_names(rank):
        while not xmp.preempted():
            time.sleep(0.005)
            note(f"other-{rank}")
"""


def test_it_is_for_all_launches_of_the_program(stage: Stage) -> None:
    ran = Ran(stage, "none", 2, "forkserver", main=OTHER_NAMES + TWO)
    ran.wait_for("other-0", "other-1")
    ran.send()
    outcome = ran.outcome()
    assert outcome.code == 0, outcome
    assert outcome.said["results"] == [None, None]
    assert len(set(outcome.said["other"])) == 1
