"""Python's hooks for exceptions that end the program, and for those that it can raise nowhere.

``init_process_group`` replaces ``sys.excepthook`` by one that writes the rank before each line, and
``destroy_process_group`` leaves that in place (torch 2.13, distributed_c10d.py).
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from xmp._words.errors import XmpError

from . import signals

__all__ = [
    "excepthook_kept", "interrupts_kept", "is_own", "said_once", "shown_short",
    "without_our_frames",
]  # fmt: skip

E = TypeVar("E", bound=XmpError)
_TORCH = "torch.distributed.distributed_c10d"
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_last: weakref.ref[XmpError] | None = None


@contextmanager
def excepthook_kept() -> Iterator[None]:
    """Undo torch's replacement at the end of the block; a hook that the function has set stays."""
    before = sys.excepthook
    try:
        yield
    finally:
        if getattr(sys.excepthook, "__module__", None) == _TORCH:
            sys.excepthook = before


@contextmanager
def interrupts_kept(all_of_handlers: bool = True) -> Iterator[None]:
    """Raise at the end of the block an interrupt that Python has only printed.

    It prints "Exception ignored in" for what is raised in an exit handler, in ``__del__`` and in
    the callback of a weak reference. Each import ends with such a callback (CPython 3.11,
    importlib._bootstrap, _get_module_lock): a Ctrl-C at that moment would be lost. With
    ``all_of_handlers``, also leave out what else a handler of the program has raised there:
    ``signals.as_usual(insists=True)`` raises that.
    """
    before, lost = sys.unraisablehook, False

    def hook(dropped: Any) -> None:
        nonlocal lost
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            lost = True
        elif not (all_of_handlers and signals.from_handler(dropped.exc_value)):
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before
    if lost:
        raise KeyboardInterrupt


def shown_short(error: E) -> E:
    """If ``error`` ends the program, have Python show only the user's frames and the error's text.

    Does nothing where the program has a hook of its own. When ``error`` is garbage collected,
    Python's hook is put back.
    """
    global _last
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    if sys.excepthook is _show:
        _last = weakref.ref(error, _gone)
    return error


def is_own(hook: object) -> bool:
    """Return whether a ``sys.excepthook`` is the one that ``shown_short`` sets."""
    return hook is _show


def _gone(_: weakref.ref[XmpError]) -> None:
    if sys.excepthook is _show:
        sys.excepthook = sys.__excepthook__


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not isinstance(error, XmpError):
        sys.__excepthook__(kind, error, traceback)
        return
    # For `python -i` and pdb.pm(), too.
    error.__traceback__ = sys.last_traceback = without_our_frames(traceback)
    with said_once(error):
        sys.__excepthook__(kind, error, error.__traceback__)


@contextmanager
def said_once(error: BaseException) -> Iterator[None]:
    """Hide, within the block, the cause that a replica has raised: the error's text contains it."""
    cause, suppressed = error.__cause__, error.__suppress_context__
    from_replica = isinstance(error, XmpError) and cause is not None and not cause.__traceback__
    try:
        if from_replica:
            error.__cause__ = None
        yield
    finally:
        if from_replica:
            error.__cause__, error.__suppress_context__ = cause, suppressed


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of xmp; unchanged if it has no others."""
    whole, kept = traceback, list[TracebackType]()
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_FOLDER):
            kept.append(traceback)
        traceback = traceback.tb_next
    found = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found or whole
