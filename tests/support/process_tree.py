"""A launch with processes below it that are hard to end."""

from __future__ import annotations

from tests.support.stage import Stage

__all__ = ["RUN", "TREE", "running"]

TREE = """
    import ctypes, os, signal, subprocess, sys, time
    import in_script, xmp

    def native(rank):
        '''In native code with the GIL held, for ever; ignores SIGTERM.'''
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank == 0:
            in_script.leave_daemon()
            subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        open(f"in-fn-{rank}", "w").close()
        ctypes.PyDLL(None).sleep(300)

    def sleeping(rank):
        in_script.leave_daemon()
        open(f"in-fn-{rank}", "w").close()
        in_script.never_returns()

    def both(rank):
        (sleeping if rank == 2 else native)(rank)

    def quick(rank):
        return rank
"""

RUN = """
    if __name__ == "__main__":
        method, fn = sys.argv[1:]
        xmp.spawn(globals()[fn], nprocs=3, runtime="cpu", start_method=method)
"""


def running(
    stage: Stage, *argv: str, source: str = TREE + RUN, env: dict[str, str] | None = None
) -> int:
    """Start a script and wait until all its replicas are in ``fn``; the launcher's pid."""
    process = stage.start(source, *argv, env=env)
    stage.in_function(process)
    return process.pid
