"""A dict of a million entries as an argument of every replica."""

import torch  # noqa: F401
from measured import Meeting, serve, timed

ENTRIES = 1_000_000


def fn(rank: int, meeting: Meeting, table: dict[int, float]) -> None:
    found = table[rank]
    meeting.mark(rank)
    assert (found, len(table)) == (rank, ENTRIES)


if __name__ == "__main__":
    serve(timed(fn, ({number: float(number) for number in range(ENTRIES)},)))
