"""Fixtures of all tests, from tests/support; skips what this host cannot do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# With it print() writes a text and its line end apart, and lines of two ranks run into each other.
os.environ.pop("PYTHONUNBUFFERED", None)

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this host cannot do; a missing installation is never a reason."""
    wanted = {m.name for item in items for m in item.iter_markers()} & ABILITIES.keys()
    for name in wanted:
        able, reason = ABILITIES[name]
        if not able():
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=reason))
