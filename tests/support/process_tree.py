"""A launch with everything that is hard to end below it."""

from __future__ import annotations

from stages import Stage, until

__all__ = ["METHODS", "RUN", "TREE", "running"]

TREE = """
    import ctypes, os, signal, subprocess, sys, time
    import in_script, xmp

    def grandchild():
        '''A daemon: double fork, its own session, deaf to what asks nicely.'''
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                time.sleep(300)
            os._exit(0)

    def native(rank):
        '''In native code with the GIL held, for ever; deaf to SIGTERM.'''
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank == 0:
            grandchild()
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        open(f"in-fn-{rank}", "w").close()
        ctypes.PyDLL(None).sleep(300)

    def sleeping(rank):
        grandchild()
        open(f"in-fn-{rank}", "w").close()
        time.sleep(300)

    def quick(rank):
        return rank
"""

RUN = """
    if __name__ == "__main__":
        method, fn = sys.argv[1:]
        xmp.spawn(globals()[fn], nprocs=3, runtime="cpu", start_method=method)
"""

METHODS = ("forkserver", "spawn", "fork")


def running(
    stage: Stage, *argv: str, source: str = TREE + RUN, env: dict[str, str] | None = None
) -> int:
    """Start a script and wait until all its replicas are in ``fn``; the launcher's pid."""
    process = stage.start(source, *argv, env=env)
    wanted = [stage.folder / f"in-fn-{rank}" for rank in range(3)]
    until(
        lambda: all(path.exists() for path in wanted) or process.poll() is not None,
        30, "replicas in fn",
    )  # fmt: skip
    assert process.poll() is None, stage.outcome(process)
    return process.pid
