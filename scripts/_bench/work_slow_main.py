"""A script whose import takes five seconds of processor time."""

import time

from measured import Meeting, serve, timed

SECONDS = 5.0

while time.process_time() < SECONDS:
    sum(range(10_000))


def fn(rank: int, meeting: Meeting) -> None:
    meeting.mark(rank)


if __name__ == "__main__":
    serve(timed(fn))
