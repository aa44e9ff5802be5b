"""A function that uses a heavy package which only the launcher has loaded so far."""

import torch  # noqa: F401
from measured import Meeting, serve, timed


def fn(rank: int, meeting: Meeting) -> None:
    import sklearn.datasets
    import sklearn.ensemble
    import sklearn.linear_model  # noqa: F401

    meeting.mark(rank)


if __name__ == "__main__":
    # Here and not above: a script's own imports would be done once by whoever imports the script.
    import sklearn.datasets
    import sklearn.ensemble
    import sklearn.linear_model  # noqa: F401

    serve(timed(fn))
