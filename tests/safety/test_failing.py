"""The first failure ends the gang at once; who does not end is killed after ``grace``.

Usually within a tenth of a second, and half a second more where somebody does not tell its stacks;
all other time limits are of five seconds or more.
"""

from __future__ import annotations

import pytest
from stages import Stage

METHODS = ("forkserver", "spawn", "fork")

HEAD = """
    import ctypes, os, signal, subprocess, sys, time
    import in_script, xmp

    def meet():
        '''All replicas are in their function; the pids of the others.'''
        open(f"here-{os.getpid()}", "w").close()
        while len(here := [n for n in os.listdir(".") if n.startswith("here-")]) < 3:
            time.sleep(0.002)
        return {int(name[5:]) for name in here} - {os.getpid()}

    def mark():
        in_script.say(failed=time.monotonic())

    def obedient(rank):
        meet()
        if rank == 1:
            mark()
            raise ValueError("the cause")
        time.sleep(60)

    def deaf(rank):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        meet()
        if rank == 1:
            mark()
            raise ValueError("the cause")
        time.sleep(60)

    def stuck(rank):
        '''Its handler of SIGTERM can never run.'''
        signal.signal(signal.SIGTERM, lambda *_: None)
        meet()
        if rank == 1:
            mark()
            raise ValueError("the cause")
        mutex = ctypes.create_string_buffer(128)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

    def stopped(rank):
        others = meet()
        if rank == 1:
            while {in_script.state(pid) for pid in others} != {"T"}:
                time.sleep(0.002)
            mark()
            raise ValueError("the cause")
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)

    def busy(rank):
        meet()
        if rank == 1:
            mark()
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            pass

    def parents(rank):
        '''Children that only their replica knows of end with it.'''
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        obedient(rank)

    def holding_stderr(rank):
        '''A daemon that keeps the replica's standard error open must not keep the launch.'''
        if rank == 1 and os.fork() == 0:
            os.setsid()
            time.sleep(60)
        obedient(rank)

    if __name__ == "__main__":
        fn, method, grace = sys.argv[1:]
        try:
            xmp.spawn(globals()[fn], nprocs=3, runtime="cpu", start_method=method,
                      grace=float(grace))
        except xmp.ReplicaError as error:
            in_script.say(raised=time.monotonic(), kind=type(error).__name__, rank=error.rank,
                          labels=sorted((f.rank, f.label) for f in error.failures),
                          left=in_script.belongings()["processes"])
"""


def seconds(stage: Stage, fn: str, method: str, grace: float) -> float:
    outcome = stage.run(HEAD, fn, method, str(grace))
    said = outcome.said
    assert said["rank"] == 1, outcome.err
    assert set(said["left"]) <= {"xmp-template", "xmp-script"}
    return float(said["raised"] - said["failed"])


@pytest.mark.parametrize("fn", ["obedient", "parents", "busy", "stopped", "holding_stderr"])
def test_everybody_else_is_stopped_at_once(stage: Stage, fn: str) -> None:
    assert seconds(stage, fn, "forkserver", 25) < 4


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_under_the_other_methods_too(stage: Stage, method: str) -> None:
    assert seconds(stage, "obedient", method, 25) < 4


@pytest.mark.parametrize("fn", ["deaf", "stuck"])
@pytest.mark.parametrize("method", METHODS)
def test_who_ignores_sigterm_is_killed_after_grace(stage: Stage, fn: str, method: str) -> None:
    assert 0.6 <= seconds(stage, fn, method, 0.6) < 4.6
