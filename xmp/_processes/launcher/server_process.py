"""The process of a fork server that the launcher has started: its start, its end, what it wrote."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping

from xmp._processes.system import interpreter, linux
from xmp._processes.system.descriptors import Held

__all__ = ["END_WAIT", "FreshInterpreter", "search_path", "wait_for_fork"]

END_WAIT = 5.0
"""Seconds in which a process that was asked to end has ended."""


class FreshInterpreter:
    """A fresh interpreter that runs ``template_main`` with these two descriptors.

    Its output goes to a memory file: it may write why it cannot report.
    """

    def __init__(self, ends: tuple[int, int], environment: Mapping[str, str]) -> None:
        """Start the process. Raise OSError if it cannot be started."""
        command = interpreter.fresh_interpreter(
            "xmp._processes.template.template_main", "main", *ends
        )
        self.executable = command[0]
        self._log = Held(linux.memory_file("xmp-template-log"))
        log = self._log.number
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                pass_fds=ends, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError:
            self.close_log()
            raise
        self.pid = self._process.pid

    def wait(self) -> None:
        """Wait for its end; SIGKILL when it takes too long."""
        try:
            self._process.wait(END_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_WAIT)

    def has_ended(self) -> bool:
        """Return whether it has ended and is reaped."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """Return how it ended although it should not have, and what it wrote."""
        code: int | str
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = "still running"
        log = self.log()
        said = f":\n{log}" if log else " and wrote nothing"
        return f"{self.executable} did not start as a template (exit code {code}){said}"

    def log(self) -> str:
        """Return the last lines that it wrote."""
        if not self._log.is_ours:
            return ""
        size = os.fstat(self._log.number).st_size
        last = os.pread(self._log.number, 4096, max(0, size - 4096))
        return last.decode(errors="replace").strip()

    def close_log(self) -> None:
        """Forget what it wrote."""
        self._log.close()


def search_path() -> list[str]:
    """``sys.path`` without the folders of the script and the shell.

    Their ``random.py`` must not shadow a library of the template's.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.dirname(os.path.abspath(main)) if main else ""
    kept = [p for p in sys.path if p != script and os.path.isabs(p)]
    return kept if interpreter.package_root in kept else [*kept, interpreter.package_root]


def wait_for_fork(pid: int) -> None:
    """As ``FreshInterpreter.wait``, for a child that the subprocess module does not know."""
    watch = linux.open_pidfd(pid)
    if watch is not None:
        poller = select.poll()
        poller.register(watch, select.POLLIN)
        if not poller.poll(END_WAIT * 1000):
            os.kill(pid, signal.SIGKILL)
        os.close(watch)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # the launcher ignores SIGCHLD: the kernel has reaped it
