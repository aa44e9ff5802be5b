"""Another user of this host, at the ports that replicas meet at: he makes a launch fail at most."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.coordinator_stranger import put
from tests.support.in_script import never_returns
from tests.support.waiting import until
from xmp._frameworks._seal import CODE_SIZE

pytestmark = pytest.mark.root


class Runs:
    """A pickle that runs code when it is opened."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (self._file,)


def hears(rank: int, collective: str, folder: Path) -> None:
    if rank == 1:
        from jax._src import distributed

        state = distributed.global_state
        if collective == "all_gather":  # what rank 0 has stored is replaced
            state.client.blocking_key_value_get_bytes("xmp/1/0", 60_000)
        (folder / "new").write_text(state.coordinator_address)
        (folder / "new").rename(folder / "address")
    if collective == "broadcast":
        never_returns() if rank == 0 else xmp.broadcast(None, 0)
    if rank == 1:
        until((folder / "written").exists, 60)
    xmp.all_gather(rank)


@pytest.mark.parametrize("collective", ["broadcast", "all_gather"])
def test_what_a_stranger_writes_for_rank_0_is_not_opened(collective: str, tmp_path: Path) -> None:
    """In JAX's coordinator, which takes it."""
    job = xmp.spawn(hears, (collective, tmp_path), nprocs=2, runtime="jax", join=False, grace=1)
    try:
        until((tmp_path / "address").exists, 60)
        head = bytes(CODE_SIZE) + pickle.dumps((pickle.dumps(Runs(tmp_path / "ran")), []))
        message = len(head).to_bytes(8, "little") + head
        put((tmp_path / "address").read_text(), "xmp/1/0", message)
        (tmp_path / "written").touch()
        with pytest.raises(xmp.ReplicaRaised, match="the message of rank 0 is not what that"):
            job.join()
    finally:
        job.terminate()
    assert not (tmp_path / "ran").exists()
