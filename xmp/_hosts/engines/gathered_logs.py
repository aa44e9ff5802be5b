"""The log files of a launch on hosts that have other files than the driver's machine.

They are written on the hosts. With ``gather_logs=True`` the driver appends to its own files what an
attempt has written, when all hosts have ended; what cannot be had is named.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xmp._os import log as _log
from xmp._os import signals
from xmp._processes.messages.thread_replicas import by_process
from xmp._processes.output.log_files import LogFile, logs
from xmp._words.errors import HostLost

if TYPE_CHECKING:
    from xmp._words.types import JobPlan, Output

    from .protocol import Group, HostFiles

__all__ = ["HostLogs"]


class HostLogs:
    """The log files of one attempt."""

    def __init__(
        self, group: Group, output: Output | None, plan: JobPlan, restart_count: int
    ) -> None:
        """Asks the hosts how long the files are, if they have parts of earlier attempts."""
        writes = output is not None and output.log_dir is not None
        self._output = output if writes and group.files(0) is not None else None
        self._names = [host.name for host in group.hosts]
        self._group, self._plan = group, plan
        self._starts: list[list[int]] = []
        if self._output is not None and self._output.gather:
            self._starts = [[0] * len(self._paths(index)) for index in range(len(self._names))]
            if restart_count:
                self._look()

    def _look(self) -> None:
        for index in range(len(self._names)):
            with contextlib.suppress(OSError):  # then the launch finds no host there, either
                self._starts[index] = self._files(index).sizes(self._paths(index))

    def _files(self, index: int) -> HostFiles:
        files = self._group.files(index)
        assert files is not None
        return files

    def _paths(self, index: int) -> list[str]:
        """On the host as here."""
        assert self._output is not None
        output = self._output
        processes = by_process(self._plan.hosts[index]).replicas
        pairs = ((each, stream) for each in processes for stream in ("stdout", "stderr"))
        return [output.log_file(*pair) for pair in pairs if logs(output, *pair)]

    def gather(self, hosts: Sequence[int]) -> None:
        """Bring what these hosts have written since the start; a warning names what is missing.

        On a host that has not come, the files may be those of an earlier launch.
        """
        if self._output is None or not self._starts:
            return
        folder = str(self._output.log_dir)
        try:
            with _marker(folder) as marker:
                for index in hosts:
                    self._gather_from(index, marker)
        except OSError as error:
            _log.warning("log_dir=%r: nothing gathered: %s", folder, error.strerror or error)
        self._starts = []

    def _gather_from(self, index: int, marker: str) -> None:
        left = list(zip(self._paths(index), self._starts[index]))
        try:
            files = self._files(index)
            if files.has(marker):
                return  # the folder of the driver: a file system that both see
            sizes = files.sizes([path for path, _ in left])
            for size in sizes:
                _append(files, *left[0], size)
                del left[0]
        except OSError as error:
            names = ", ".join(os.path.basename(path) for path, _ in left)
            why = error.strerror or error
            _log.warning("%s: not gathered: %s (%s)", self._named(index), names, why)

    def _named(self, index: int) -> str:
        return f"host {index} ({self._names[index]})"

    def where(self, error: BaseException) -> str:
        """For an error: on which host the files of its replica are; "" where they are here."""
        if self._output is None or self._output.gather:
            return ""
        if isinstance(error, HostLost):
            return self._where_lost(error)
        rank = getattr(error, "rank", -1)
        if not isinstance(rank, int) or rank < 0:
            return ""
        index = rank // len(self._plan.hosts[0].replicas)
        local = by_process(self._plan.hosts[index]).replicas
        own = next(p for p in local if rank in {p.rank, *(t.rank for t in p.thread_replicas)})
        path = self._output.log_file(own, "stderr")
        return f"Its log files are on {self._named(index)}: {path}; gather_logs=True brings them"

    def _where_lost(self, error: HostLost) -> str:
        if self._output is None or not 0 <= error.host_index < len(self._names):
            return ""
        return f"Its log files are on {self._named(error.host_index)}, in {self._output.log_dir}"


@contextlib.contextmanager
def _marker(folder: str) -> Iterator[str]:
    """Make a file by which a host that has the same folder is known; give its path.

    Such a host's files are those of the driver, and must not be appended to themselves.
    """
    path = Path(folder, f".xmp-{secrets.token_hex(8)}")
    path.touch(0o600, exist_ok=False)
    try:
        yield str(path)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _append(files: HostFiles, path: str, start: int, size: int) -> None:
    """Append the part of a host's file from ``start`` to the file of the same path here."""
    if size <= start:
        return
    parts = files.parts(path, start, size - start)
    with contextlib.closing(LogFile(path)) as log, contextlib.closing(parts):
        for part in parts:
            log.write(part)
            if log.failed is not None:
                raise log.failed
            if signals.is_noted(signal.SIGINT):
                raise InterruptedError(0, "interrupted by Ctrl-C")
