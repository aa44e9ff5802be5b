"""Another user of this host at Paddle's store, which listens on all interfaces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.gloo_stranger import MARKER, at_store
from tests.support.waiting import until

pytestmark = [pytest.mark.paddle, pytest.mark.root]


class Held:
    """Where it is loaded, rank 0 joins before rank 1 does: then it has a stranger's connections."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _hold, (self._folder,)


def _hold(folder: Path) -> None:
    import paddle.distributed

    joins = paddle.distributed.init_parallel_env

    def held() -> Any:
        if os.environ["PADDLE_TRAINER_ID"] == "1":
            until((folder / "go").exists, 60)
            return joins()
        (folder / "new").write_text(os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0])
        (folder / "new").rename(folder / "address")
        group = joins()
        (folder / "joined").touch()
        return group

    paddle.distributed.init_parallel_env = held


def sends(rank: int, of_paddle: bool, held: None) -> None:
    sent = MARKER if rank == 0 else None
    if not of_paddle:
        xmp.broadcast(sent, 0)
        return
    import paddle.distributed

    paddle.distributed.broadcast_object_list([sent], 0)


@pytest.mark.parametrize("of_paddle", [False, True])
def test_what_a_stranger_sends_by_way_of_paddles_store(of_paddle: bool, tmp_path: Path) -> None:
    """xmp's broadcast does not open it; Paddle's own collectives of objects do."""
    job = xmp.spawn(
        sends, (of_paddle, Held(tmp_path)), nprocs=2, runtime="paddle", join=False, grace=1
    )
    try:
        until((tmp_path / "address").exists, 60)
        store = "paddle", (tmp_path / "address").read_text(), 2, "0.0.0.0", str(tmp_path / "ran")
        with at_store(*store) as stranger:
            until((tmp_path / "joined").exists, 60)
            stranger.go_on()
            (tmp_path / "go").touch()
            if of_paddle:
                job.join()
            else:
                with pytest.raises(xmp.ReplicaRaised, match="was not opened: another program"):
                    job.join()
            assert stranger.has_forged()
    finally:
        job.terminate()
    assert (tmp_path / "ran").exists() == of_paddle
