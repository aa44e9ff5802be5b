"""A function that uses a heavy package which only the launcher has loaded so far."""

import torch  # noqa: F401
from measured import Meeting, serve, timed


def fn(rank: int, meeting: Meeting) -> None:
    import sklearn.datasets
    import sklearn.ensemble
    import sklearn.linear_model  # noqa: F401

    meeting.mark(rank)


if __name__ == "__main__":
    # Not at the top: those imports would run once, in the process that imports the script.
    import sklearn.datasets
    import sklearn.ensemble
    import sklearn.linear_model  # noqa: F401

    serve(timed(fn))
