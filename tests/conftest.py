"""Fixtures of all tests, from tests/support; skips what this host cannot do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.lazily import frameworks_of

# With it print() writes a text and its line end apart, and lines of two ranks run into each other.
os.environ.pop("PYTHONUNBUFFERED", None)

# Under nohup, and in the background of a script, they are ignored: all that tests start would
# inherit that, and no Ctrl-C or Ctrl-\ of a test would reach it.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

# What a test must not leave (leaks.py), what it has and how it launches (fixtures.py).
pytest_plugins = ["tests.support.leaks", "tests.support.fixtures"]


def can_make_network_namespaces() -> bool:
    """Tried in a child: entering a namespace cannot be undone."""
    pid = os.fork()
    if pid == 0:
        import ctypes

        os._exit(ctypes.CDLL(None).unshare(0x40000000) != 0)  # CLONE_NEWNET
    return os.waitpid(pid, 0)[1] == 0


ABILITIES = {
    "gpu": (lambda: Path("/dev/nvidiactl").exists(), "this host has no CUDA device"),
    "root": (lambda: os.geteuid() == 0, "needs to be root"),
    "netns": (can_make_network_namespaces, "the kernel refuses network namespaces here"),
}


OTHER_METHODS = ("spawn", "fork")


def has_another_method(item: pytest.Item) -> bool:
    """Whether it is the case of a test for a start method that is not the default."""
    given = getattr(item, "callspec", None)
    return given is not None and any(
        isinstance(value, str) and value in OTHER_METHODS for value in given.params.values()
    )


@pytest.hookimpl(tryfirst=True)  # -m selects in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases of the other start methods and of frameworks; skip what this host cannot do.

    A missing installation is never a reason to skip. Modules that import a framework come last:
    once it is loaded here, every template imports it, and every fork copies its tables of pages.
    """
    items.sort(key=lambda item: frameworks_of(item.path))
    for item in items:
        if frameworks_of(item.path):
            item.add_marker(pytest.mark.framework)
    for item in filter(has_another_method, items):
        item.add_marker(pytest.mark.another_method)
        if not item.get_closest_marker("each_method"):
            item.add_marker(pytest.mark.methods)
    wanted = {m.name for item in items for m in item.iter_markers()} & ABILITIES.keys()
    for name in wanted:
        able, reason = ABILITIES[name]
        if not able():
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=reason))
