"""Chips that are not there: how many of them the ``fake`` runtime finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from xmp._errors import PlanError
from xmp._spawn import public

__all__ = ["fake_chips"]

_CHIPS = "FAKE_CHIPS"  # as xmp/_runtimes/fake.py reads it
_VISIBLE = "FAKE_VISIBLE_CHIPS"


@public
def fake_chips(count: int = 4) -> AbstractContextManager[None]:
    """While inside, this host pretends to have so many chips, for ``runtime="fake"``.

    A launch with ``runtime="fake"`` then plans, leases ports and starts replicas as one on a real
    accelerator does. Each replica has a chip of its own in ``FAKE_VISIBLE_CHIPS`` and in
    ``xmp.replica().device_id``, the chips of one launch are arranged as ``FAKE_PROCESS_BOUNDS``
    ("2,2,1") says, and ``FAKE_PROCESS_ADDRESSES`` has an address for each replica. As on a TPU host
    not every number of replicas fits: 1, 2, 4 and 8 do. Computation is torch's, on the CPU, with
    gloo.

    It sets environment variables of this process, and puts them back at the end. Raises PlanError
    for a number below 1, TypeError for what is no number.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"count must be a whole number, not {type(count).__name__}: {count!r}")
    if count < 1:
        raise PlanError(f"count={count}: give a number of chips from 1 up; 1, 2, 4 or 8 are used")
    return _pretending(count)


@contextmanager
def _pretending(count: int) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in (_CHIPS, _VISIBLE)}
    os.environ[_CHIPS] = str(count)
    os.environ.pop(_VISIBLE, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
