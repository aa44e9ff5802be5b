"""The key of a launch: its replicas have the same, and nothing that others can read shows it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import METHODS, launch
from xmp._inside import launch_key
from xmp._inside.launch_key import KEY_SIZE
from xmp._processes.messages.order import LaunchOrder


def shows(rank: int) -> tuple[bytes, str]:
    """The key, and what of this replica its user, or another one, may see."""
    own = Path("/proc/self")
    seen: list[Any] = [(own / "cmdline").read_bytes(), (own / "environ").read_bytes()]
    return launch_key(), repr([*seen, dict(os.environ), asdict(xmp.replica()), xmp.replica()])


@pytest.mark.parametrize("method", METHODS)
def test_replicas_have_a_key_that_nothing_shows(method: str) -> None:
    first = launch(method, shows)
    [key, other] = [found[0] for found in first]
    assert key == other
    assert len(key) == KEY_SIZE
    for _, text in first:
        assert repr(key)[2:-1] not in text
        assert key.hex() not in text


def test_no_two_attempts_have_the_same_key(tmp_path: Path) -> None:
    def fails_once(rank: int) -> bytes:
        (tmp_path / f"{xmp.restart_count()}").write_bytes(launch_key())
        if not xmp.restart_count():
            raise OSError("once")
        return launch_key()

    [key, _] = launch("forkserver", fails_once, max_restarts=1)
    assert key == (tmp_path / "1").read_bytes() != (tmp_path / "0").read_bytes()


def test_an_order_does_not_show_it() -> None:
    fields = dict.fromkeys(LaunchOrder.__dataclass_fields__)
    assert "of-this-launch" not in repr(LaunchOrder(**{**fields, "key": b"of-this-launch"}))
