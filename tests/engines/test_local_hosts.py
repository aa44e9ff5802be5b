"""``engine="local"``: hosts that this machine plays, with two replicas each."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

import xmp

pytestmark = pytest.mark.hosts

WITH_JAX: dict[str, Any] = {"engine": "local", "hosts": 2, "nprocs": 2, "progress": False}
TWO: dict[str, Any] = {**WITH_JAX, "runtime": "cpu"}


def place(rank: int) -> tuple[int, int, int]:
    return xmp.rank(), xmp.host_index(), xmp.local_rank()


def test_a_world_of_all_replicas() -> None:
    """``test_local_hosts_page.py`` has one that gloo connects, on four hosts."""
    results = xmp.launch(place, **TWO)
    assert list(results) == [(rank, rank // 2, rank % 2) for rank in range(4)]
    assert list(results.by_rank) == [*range(4)]
    assert all(0 < each.entered <= each.left for each in results.timeline.values())


def test_lines_name_their_host(capfd: pytest.CaptureFixture[str]) -> None:
    """A table of all options: ``test_host_output.py``."""
    xmp.launch(lambda rank: print("hello", flush=True), show=[0, 3], **TWO)
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == ["[127.0.0.2:0] hello", "[127.0.0.3:3] hello"]


def test_gathered_logs_are_here_anyway(tmp_path: Path) -> None:
    xmp.launch(lambda rank: print(rank), log_dir=tmp_path, gather_logs=True, show="none", **TWO)
    logs = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert logs == {
        **{f"rank{rank}.stdout.log": f"{rank}\n" for rank in range(4)},
        **{f"rank{rank}.stderr.log": "" for rank in range(4)},
    }


def large(rank: int) -> Any:
    import numpy as np

    return np.full(100_000_000 // 8, float(rank))


def test_large_results_are_not_copied() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results = xmp.launch(large, **TWO)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000, "kB: the driver maps what replicas have sent"
    assert [float(each[-1]) for each in results] == [0.0, 1.0, 2.0, 3.0]
    results[3][0] = 7.0


def test_fresh_interpreters() -> None:
    offset = 5
    options = {**TWO, "hosts": 3, "nprocs": 1}
    assert list(xmp.launch(lambda rank: rank + offset, start_method="spawn", **options)) == [
        5,
        6,
        7,
    ]


def test_one_host(capfd: pytest.CaptureFixture[str]) -> None:
    def function(rank: int) -> int:
        print("hello", flush=True)
        return xmp.world_size()

    assert list(xmp.launch(function, **{**TWO, "hosts": 1})) == [2, 2]
    assert capfd.readouterr().out == "hello\n" * 2


def test_in_a_script_and_in_a_program_without_a_file(stage: Any) -> None:
    source = """
        import xmp

        class Answer:
            def __init__(self, rank):
                self.rank = rank

        def function(rank):
            return Answer(rank)

        if __name__ == "__main__":
            options = dict(engine="local", hosts=2, nprocs=1, runtime="cpu")
            print([type(each) is Answer and each.rank for each in xmp.launch(function, **options)])
    """
    for file in (True, False):
        assert stage.run(source, file=file).out == "[0, 1]\n"


# --- frameworks: what this process imports, the templates of all later launches import too ------


def sums_with_a_mesh(rank: int) -> tuple[int, float]:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("all",))
    spread = NamedSharding(mesh, PartitionSpec("all"))
    values = jax.make_array_from_callback((8,), spread, lambda part: np.arange(8.0)[part])
    together = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
    return len(jax.devices()), float(together(values).addressable_data(0))


def test_a_mesh_of_jax_over_all_replicas() -> None:
    assert list(xmp.launch(sums_with_a_mesh, runtime="jax", **WITH_JAX)) == [(4, 28.0)] * 4


def test_arguments_closures_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for name, value in (("NNODES", "7"), ("NODE_RANK", "3"), ("OWN", "kept")):
        monkeypatch.setenv(name, value)
    shared, factor, events = torch.zeros(4), 7, list[xmp.Event]()

    def function(rank: int, tensor: torch.Tensor, *, word: str) -> tuple[Any, ...]:
        tensor[rank] = rank * factor
        xmp.barrier()
        print(word, rank, flush=True)
        names = ("NNODES", "NODE_RANK", "MASTER_ADDR", "OWN", "MINE")
        return tensor.tolist(), torch.initial_seed(), [os.environ.get(name) for name in names]

    results = xmp.launch(
        function, (shared,), kwargs={"word": "said"}, env={"MINE": "m"}, seed=3, threads=1,
        log_dir=tmp_path, show="none", events=events.append, timeout=60, start_timeout=50,
        hang_timeout=50, grace=2, **TWO,
    )  # fmt: skip
    assert shared.tolist() == [0.0] * 4  # each host has a copy, which its replicas share
    assert [each[0] for each in results] == [[0, 7, 0, 0]] * 2 + [[0, 0, 14, 21]] * 2
    assert {each[1] for each in results} == {3}
    expected = [["2", str(host), "127.0.0.2", "kept", "m"] for host in (0, 0, 1, 1)]
    assert [each[2] for each in results] == expected
    logs = {path.name: path.read_text() for path in tmp_path.glob("*.stdout.log")}
    assert logs == {f"rank{rank}.stdout.log": f"said {rank}\n" for rank in range(4)}
    check_events(events)


def check_events(events: list[xmp.Event]) -> None:
    assert (events[0].name, events[-1].name) == ("planned", "finished")
    assert len({event.launch_id for event in events}) == 1
    assert [e.elapsed for e in events] == sorted(e.elapsed for e in events)
    for name in ("forked", "joining", "running", "returned", "exited"):
        assert sorted(e.rank or 0 for e in events if e.name == name) == [0, 1, 2, 3]
