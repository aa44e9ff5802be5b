"""Ranks of one host that wait for one of another: it is named, once, where the program runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import xmp
from tests.support.waiting import until

pytestmark = pytest.mark.hosts


def comes_when_it_is_noticed(rank: int, noticed: Path) -> int:
    xmp.barrier()
    if rank == 3:
        until(noticed.exists, 60)
    xmp.barrier()
    return rank


def test_the_late_rank_is_named_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XMP_HANG_NOTICE", "1")
    noticed = tmp_path / "noticed"
    said: list[str] = []

    def note(event: xmp.Event) -> None:
        if event.name == "waiting":
            said.append(event.message)
            noticed.write_text("")

    results = xmp.launch(
        comes_when_it_is_noticed, (noticed,), events=note, engine="local", hosts=2, nprocs=2,
        runtime="cpu", progress=False, timeout=60,
    )  # fmt: skip
    assert [*results] == [0, 1, 2, 3]
    assert said
    assert said[0].startswith("rank 3 has not come to the barrier at test_waits_over_hosts.py:")
    assert "where ranks 0-2 wait" in said[0]
    assert "it is in until() at waiting.py:" in said[0]
    assert capfd.readouterr().err.count(f"xmp: {said[0]}") == 1
