"""A 512 MB array as an argument of every replica."""

import numpy as np
import torch  # noqa: F401
from measured import Meeting, serve, timed


def fn(rank: int, meeting: Meeting, array: np.ndarray) -> None:
    first, last = array[0], array[-1]
    meeting.mark(rank)
    meeting.wait()
    assert first == last == 1.0


if __name__ == "__main__":
    serve(timed(fn, (np.ones(512 * 2**20 // 8),)))
