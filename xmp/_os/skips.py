"""The outcomes of tests that run in replicas: how pytest's travel, and which of them are skips.

xmp imports no test runner. pytest's outcomes cannot be pickled, since their classes claim to be
built in (pytest 9, _pytest/outcomes.py): they travel as ``Sent``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

__all__ = ["is_skip", "received", "sent"]

_PYTEST = "_pytest.outcomes"
_SKIPS = ((_PYTEST, "Skipped"), (_PYTEST, "XFailed"), ("unittest.case", "SkipTest"))


class Sent(Exception):
    """An outcome of pytest's on its way: the name of its class, its reason, ``pytrace``."""


def sent(error: BaseException) -> BaseException:
    """Return what to pickle for ``error``: a ``Sent`` for pytest's outcomes, else the error."""
    base = _loaded(_PYTEST, "OutcomeException")
    kind = type(error)
    if base is None or not isinstance(error, base) or _loaded(_PYTEST, kind.__name__) is not kind:
        return error
    return Sent(kind.__name__, getattr(error, "msg", None), getattr(error, "pytrace", True))


def received(error: BaseException) -> BaseException | None:
    """Return the error that ``sent`` was given; None for pytest's if pytest is not loaded here."""
    if not isinstance(error, Sent):
        return error
    name, reason, pytrace = error.args
    kind = _loaded(_PYTEST, name)
    return None if kind is None else kind(reason, pytrace)


def is_skip(error: BaseException | None) -> bool:
    """Return whether a test runner that this process has loaded does not count it as a failure.

    That holds for what ``pytest.skip``, ``importorskip`` and ``xfail`` raise, and for
    ``unittest.SkipTest``.
    """
    return isinstance(error, tuple(_kinds()))


def _kinds() -> Iterator[type[BaseException]]:
    for module, name in _SKIPS:
        kind = _loaded(module, name)
        if kind is not None:
            yield kind


def _loaded(module: str, name: str) -> type[BaseException] | None:
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
