"""One file per rank and stream: made before any process exists, written by the supervisor."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from xmp._processes.messages.thread_replicas import by_process
from xmp._words.errors import PlanError
from xmp._words.types import JobPlan, Output, ReplicaPlan

__all__ = ["LogFile", "logs", "opened", "prepare", "shows"]

# O_NOFOLLOW: a symbolic link of another user must not lead to another file (open(2)).
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def logs(output: Output, process: ReplicaPlan, stream: str) -> bool:
    """Return whether "stdout" or "stderr" of the process has a log file."""
    return output.log_dir is not None and _names(1, output, process, stream)


def shows(output: Output, process: ReplicaPlan, stream: str) -> bool:
    """Return whether "stdout" or "stderr" of the process is shown."""
    return output.shows(process) and _names(2, output, process, stream)


def _names(column: int, output: Output, process: ReplicaPlan, stream: str) -> bool:
    rows = {row[0]: row for row in ((-1, 3, 3), *output.streams)}
    row = rows.get(process.local_rank, rows[-1])
    return row[column] & (1 if stream == "stdout" else 2) > 0


def prepare(output: Output, plan: JobPlan, truncate: bool) -> None:
    """Check the call's output and make the log files; a restart does not ``truncate`` them.

    Raises PlanError for ranks that the launch does not have, and for a prefix or a folder that
    cannot be used.
    """
    unknown = [rank for rank in output.show or () if not 0 <= rank < plan.world_size]
    if unknown:
        ranks = f"the ranks 0 to {plan.world_size - 1}" if plan.world_size > 1 else "rank 0 alone"
        raise PlanError(
            f"show: there is no rank {unknown[0]}; this launch has {ranks}", code="XMP-P01"
        )
    processes = by_process(plan.hosts[0]).replicas
    try:
        for process in processes:
            output.prefix_of(process, "")
    except ValueError as error:
        raise PlanError(
            f"prefix={output.prefix!r}: {error}; here several replicas share a process, so "
            '{rank} is text such as "0,1"',
            code="XMP-P01",
        ) from error
    if output.log_dir is not None:
        _make_files(output, processes, truncate)


def _make_files(output: Output, processes: Sequence[ReplicaPlan], truncate: bool) -> None:
    """Make the folder and empty files, for the user alone."""
    path = str(output.log_dir)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        for process in processes:
            with suppress(FileNotFoundError):
                os.unlink(output.black_box(process))  # an earlier attempt's
            for stream in ("stdout", "stderr"):
                if not logs(output, process, stream):
                    continue
                path = output.log_file(process, stream)
                descriptor = opened(path)
                try:
                    if truncate:
                        os.ftruncate(descriptor, 0)
                finally:
                    os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanError(
            f"log_dir={output.log_dir!r}: {path}: {reason}; give a folder that can be written to",
            code="XMP-P14",
        ) from error


def opened(path: str) -> int:
    """Open a regular file that is this user's alone, made if need be. Raises OSError for others.

    Another user who can write to the folder may have put something there that leads elsewhere: a
    hard link to another file, a FIFO that is read, a file of their own.
    """
    descriptor = os.open(path, _FLAGS, 0o600)
    try:
        found = os.fstat(descriptor)
        # With root_squash an NFS server gives root's files and folders to another user.
        owners = {os.geteuid(), os.stat(os.path.dirname(path)).st_uid}
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EEXIST, "is there and is no regular file")
        if found.st_nlink > 1:
            raise OSError(errno.EEXIST, "is there and has another name (a hard link)")
        if found.st_uid not in owners:
            raise OSError(errno.EEXIST, f"is there and belongs to user {found.st_uid}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class LogFile:
    """The log file of one stream; text that the launcher's stream takes too slowly is read back."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = opened(path)
        self.size = os.fstat(self.descriptor).st_size
        self.failed: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Append, and return how many bytes were written. A full disk is noted, not raised."""
        left = memoryview(data)
        while left and self.failed is None:
            try:
                left = left[os.write(self.descriptor, left) :]
            except OSError as error:
                self.failed = error
        written = len(data) - len(left)
        self.size += written
        return written

    def read(self, start: int, most: int) -> bytes:
        """Return up to ``most`` bytes from ``start`` on; b"" if they cannot be read."""
        try:
            return os.pread(self.descriptor, min(most, self.size - start), start)
        except OSError:
            return b""

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
