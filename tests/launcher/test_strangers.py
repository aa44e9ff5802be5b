"""Another user of this host, at the ports that replicas meet at: he makes a launch fail at most."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.coordinator_stranger import put
from tests.support.gloo_stranger import MARKER, at_store
from tests.support.in_script import never_returns
from tests.support.waiting import until
from xmp._inside.frameworks._seal import CODE_SIZE

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
            state.client.blocking_key_value_get_bytes("xmp/0/1/0", 60_000)
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
        put((tmp_path / "address").read_text(), "xmp/0/1/0", message)
        (tmp_path / "written").touch()
        with pytest.raises(xmp.ReplicaRaised, match="the message of rank 0 is not what that"):
            job.join()
    finally:
        job.terminate()
    assert not (tmp_path / "ran").exists()


def broadcast_of_torch(value: Any) -> None:
    import torch.distributed

    xmp.init_process_group()
    torch.distributed.broadcast_object_list([value], 0)


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "broadcast": xmp.broadcast,
    "all_gather": xmp.all_gather,
    "of torch": broadcast_of_torch,
}


def leads(rank: int, collective: str, folder: Path) -> None:
    """Rank 0 joins the group before the others do: then it has a stranger's connections."""
    if rank == 0:
        (folder / "new").write_text(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
        (folder / "new").rename(folder / "address")
        xmp.init_process_group()
        (folder / "joined").touch()
    until((folder / "go").exists, 60)
    COLLECTIVES[collective](MARKER if rank == 0 else None)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_a_stranger_sends_by_way_of_torchs_store(collective: str, tmp_path: Path) -> None:
    """xmp's collectives do not open it; torch's own collectives of objects do."""
    job = xmp.spawn(leads, (collective, tmp_path), nprocs=2, runtime="cpu", join=False, grace=1)
    try:
        until((tmp_path / "address").exists, 60)
        address = (tmp_path / "address").read_text()
        with at_store("torch", address, 2, "0.0.0.0", str(tmp_path / "ran")) as stranger:
            until((tmp_path / "joined").exists, 60)
            stranger.go_on()
            (tmp_path / "go").touch()
            if collective == "of torch":
                job.join()
            else:
                with pytest.raises(xmp.ReplicaRaised, match="was not opened: another program"):
                    job.join()
            assert stranger.has_forged()
    finally:
        job.terminate()
    made = [path.stat().st_uid for path in tmp_path.glob("ran")]
    assert made == ([os.getuid()] if collective == "of torch" else [])
