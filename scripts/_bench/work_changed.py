"""What an import cannot see changes before each spawn: no template may be started for that."""

import os
import tempfile

import systems
import torch  # noqa: F401
from measured import Meeting, serve, system, timed

FOLDERS = (tempfile.gettempdir(), os.getcwd())
rounds = 0


def fn(rank: int, meeting: Meeting) -> None:
    meeting.mark(rank)


def nothing(rank: int) -> None:
    pass


def change() -> None:
    """nprocs, a port, PWD, COLUMNS, and variables that are read at first use."""
    global rounds
    rounds += 1
    systems.run("xmp", nothing, (), 2 + 2 * (rounds % 2))
    os.chdir(FOLDERS[rounds % 2])
    os.environ.update(
        PWD=os.getcwd(),
        COLUMNS=str(80 + rounds),
        MASTER_PORT=str(20000 + rounds),
        TPU_PROCESS_PORT=str(30000 + rounds),
        XLA_FLAGS=f"--xla_force_host_platform_device_count={1 + rounds % 2}",
        NCCL_DEBUG=("WARN", "INFO")[rounds % 2],
    )


def measure(meeting: Meeting) -> dict[str, float]:
    if system() == "xmp-changed":
        change()
    return timed(fn)(meeting)


if __name__ == "__main__":
    serve(measure)
