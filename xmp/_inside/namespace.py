"""``state``: what a replica of a gang keeps between calls."""

from __future__ import annotations

from types import SimpleNamespace

from .identity import current

__all__ = ["state"]

_by_local_rank: dict[int, SimpleNamespace] = {}
"""Replicas may be threads of one process."""


def state() -> SimpleNamespace:
    """Return the namespace of this replica, which lives as long as its process.

    A function that a gang runs keeps there what the next call needs::

        def setup(rank):
            xmp.state().model = MyModel().to(xmp.device())

        def train(rank, epoch):
            model = xmp.state().model

    Each replica has its own. Outside a launch it is that of this process.
    """
    return _by_local_rank.setdefault(current().info.local_rank, SimpleNamespace())
