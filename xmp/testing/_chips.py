"""Pretended chips: how many of them the ``fake`` runtime finds."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, ContextDecorator
from dataclasses import dataclass

from xmp._calls.spawn import public
from xmp._words.errors import PlanError, wrong_type

__all__ = ["fake_chips"]

_CHIPS = "FAKE_CHIPS"  # as xmp/_plan/runtimes/fake.py reads it
_VISIBLE = "FAKE_VISIBLE_CHIPS"
_MOST = 8  # the most chips that this runtime can arrange


@public
def fake_chips(count: int = 4) -> AbstractContextManager[None]:
    """Pretend that this host has ``count`` chips for ``runtime="fake"``, within a ``with`` block.

    A launch with ``runtime="fake"`` then plans, leases ports and starts replicas as one on a real
    accelerator does. Each replica has a chip of its own in ``FAKE_VISIBLE_CHIPS`` and in
    ``xmp.replica().device_id``, the chips of one launch are arranged as ``FAKE_PROCESS_BOUNDS``
    ("2,2,1") says, and ``FAKE_PROCESS_ADDRESSES`` has an address for each replica. As on a TPU host
    not every number of replicas fits: 1, 2, 4 and 8 do. Computation is torch's, on the CPU, with
    gloo.

    Args:
        count: the number of chips, from 1 to 8.

    Returns:
        A context manager, also usable as a decorator. It sets environment variables of this
        process on entry, and restores them at the end.

    Raises:
        PlanError: ``count`` is not from 1 to 8. Entering the block raises it while another thread
            is inside with another number, as all threads share the environment.
        TypeError: ``count`` is not a whole number.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise wrong_type("count", "a whole number", count)
    if not 1 <= count <= _MOST:
        raise PlanError(
            f"count={count}: give a number of chips from 1 to {_MOST}; 1, 2, 4 or 8 are used",
            code="XMP-P01",
        )
    return _Pretended(count)


@dataclass(frozen=True, eq=False)
class _Entry:
    """A ``with`` block that has not ended."""

    pretended: _Pretended
    thread: int


_lock = threading.Lock()
_open: list[_Entry] = []
"""Open blocks, the last entered at the end. Tasks and threads may leave in another order."""
_before: dict[str, str | None] = {}
"""The values of the variables when the first block was entered."""


class _Pretended(ContextDecorator, AbstractContextManager[None]):
    """``count`` chips while inside; it may be entered again, even from inside."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        here = threading.get_ident()
        with _lock:
            for entry in _open:
                if entry.thread != here and entry.pretended.count != self.count:
                    raise PlanError(
                        f"fake_chips({self.count}): another thread is inside "
                        f"fake_chips({entry.pretended.count}), and the environment that says the "
                        "number is that of all threads. Enter one around the threads.",
                        code="XMP-P10",
                    )
            if not _open:
                _before.update({name: os.environ.get(name) for name in (_CHIPS, _VISIBLE)})
            _open.append(_Entry(self, here))
            _put({_CHIPS: str(self.count), _VISIBLE: None})

    def __exit__(self, *_: object) -> None:
        with _lock:
            own = next(entry for entry in reversed(_open) if entry.pretended is self)
            _open.remove(own)
            if _open:
                _put({_CHIPS: str(_open[-1].pretended.count), _VISIBLE: None})
            else:
                _put(_before)


def _put(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
