"""A 256 MB array back from every replica; the time until the caller has them all."""

import os
import time

import numpy as np
import proc
import systems
from measured import Meeting, serve, system

SIZE = 256 * 2**20


def fn(rank: int, meeting: Meeting) -> np.ndarray:
    meeting.mark(rank)
    return np.full(SIZE // 8, rank, dtype=np.float64)


def measure(meeting: Meeting) -> dict[str, float]:
    """``peak`` is the most memory that the launcher had more than before, over that of the arrays:
    1 where nothing is held twice."""
    before = proc.reset_peak(os.getpid())
    called = time.monotonic_ns()
    arrays = systems.run(system(), fn, (meeting,), meeting.count)
    seconds = (time.monotonic_ns() - called) / 1e9
    means = [float(array.mean()) for array in arrays]  # touches every page
    assert means == list(range(meeting.count))
    growth = proc.peak(os.getpid()) - before
    return {"seconds": seconds, "peak": growth / (SIZE * meeting.count)}


if __name__ == "__main__":
    serve(measure)
