"""A program whose replicas wait for Ctrl-C in a terminal."""

from __future__ import annotations

import signal
import subprocess

from tests.support.in_script import signals, state
from tests.support.terminal import Terminal
from tests.support.waiting import until

__all__ = ["HEAD", "handles", "started"]

HEAD = """
    import ctypes, os, signal, sys, time
    import in_script, xmp

    def note(name):
        with open(name, "a") as file:
            file.write("x")

    def waiting(rank):
        try:
            note(f"in-fn-{rank}")
            in_script.never_returns()
        except KeyboardInterrupt:
            note(f"interrupted-{rank}")
            raise
        finally:
            note(f"finally-{rank}")

    def swallowing(rank):
        try:
            note(f"in-fn-{rank}")
            in_script.never_returns()
        except KeyboardInterrupt:
            note(f"interrupted-{rank}")
        return rank

    def deaf(rank):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # that it has come can be seen
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(f"in-fn-{rank}")
        in_script.never_returns()

    def saves_at_sigterm(rank):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: (note(f"saved-{rank}"), sys.exit(3)))
        note(f"in-fn-{rank}")
        in_script.never_returns()

    def stuck(rank):
        '''In native code with the GIL held, which no signal interrupts: a lock taken twice.'''
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        mutex = ctypes.create_string_buffer(128)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        note(f"in-fn-{rank}")
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

    def launch(fn, **options):
        try:
            context = xmp.spawn(fn, nprocs=3, runtime="cpu", join=False, **options)
            note("launched")
            in_script.say(ended="results", results=list(context.results()))
        except KeyboardInterrupt as error:
            in_script.say(ended="KeyboardInterrupt", cause=repr(error.__cause__))
        except BaseException as error:
            in_script.say(ended=type(error).__name__, text=str(error)[:2000])
        in_script.say(at=time.monotonic(), left=in_script.belongings()["processes"])

    if __name__ == "__main__":
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
        launch(globals()[sys.argv[1]], grace=float(sys.argv[3]), start_method=sys.argv[2])
        after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
        in_script.say(handlers=handlers == after)
"""


def started(terminal: Terminal, *argv: str, source: str = HEAD) -> subprocess.Popen[str]:
    """Start it with its input here; return when its three replicas wait in their function."""
    stage = terminal.stage
    process = terminal.start(source, *argv, streams=("stdin",))
    stage.in_function(process)
    if "launched" in source:  # with its handlers of all signals
        stage.reached(process, "launched")
        until(lambda: handles(process.pid, signal.SIGTERM), 10, "the launcher waits")
        until(lambda: {state(p) for p in stage.replicas()} == {"S"}, 10, "replicas wait")
    return process


def handles(pid: int, number: int) -> bool:
    return number in signals(pid, "SigCgt")
