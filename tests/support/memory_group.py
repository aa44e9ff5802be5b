"""A memory control group for a test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["memory_group"]


@contextmanager
def memory_group() -> Iterator[Path]:
    """A memory control group, version 1 or 2 as this host has it, without a limit."""
    place = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            place = place / "memory" / path.strip("/")
    group = place / f"xmp-test-{uuid.uuid4().hex}"
    try:
        if place == Path("/sys/fs/cgroup"):
            (place / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        yield group
    finally:
        group.rmdir()
