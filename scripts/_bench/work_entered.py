"""A script that has imported torch, and a function that does nothing but be there."""

from measured import Meeting, serve, system, timed

if system() == "xmp-preload":
    import xmp

    xmp.preload("torch")

import torch  # noqa: F401


def fn(rank: int, meeting: Meeting) -> None:
    meeting.mark(rank)
    meeting.wait()


if __name__ == "__main__":
    serve(timed(fn))
