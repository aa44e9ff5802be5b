"""JAX in real replicas: the mesh is up before the function runs, collectives keep types."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xmp
from tests.support.frameworks import OPS, together
from tests.support.frameworks import replicas as any_replicas
from tests.support.launching import METHODS, never_returns
from tests.support.waiting import until

replicas = partial(any_replicas, runtime="jax", nprocs=2)


def mesh(rank: int) -> Any:
    import jax

    return (
        (jax.process_index(), jax.process_count(), len(jax.local_devices())),
        (jax.default_backend(), xmp.device() is jax.local_devices()[0], xmp.world_size()),
        xmp.all_reduce(rank + 1),
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_mesh_is_up_when_the_function_starts(method: str) -> None:
    met = replicas(mesh, start_method=method)
    assert met == [((rank, 2, 1), ("cpu", True, 2), 3) for rank in range(2)]


@pytest.mark.parametrize(
    "variable",
    ["JAX_NUM_CPU_DEVICES=2", "XLA_FLAGS=--xla_force_host_platform_device_count=2"],
)
def test_several_devices_in_a_replica(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    met = replicas(mesh)
    assert [each[0] for each in met] == [(0, 2, 2), (1, 2, 2)]


def with_jit(rank: int) -> float:
    """A plain JAX program over the global mesh."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    whole = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(whole, PartitionSpec("data"))
    data = jax.make_array_from_process_local_data(sharding, np.full(2, rank + 1.0, "float32"))
    return float(jax.jit(jnp.sum, out_shardings=NamedSharding(whole, PartitionSpec()))(data))


def test_a_program_over_the_global_mesh(found: dict[str, list[Any]]) -> None:
    assert found["with_jit"] == [6.0, 6.0]


def first_one_leaves_early(rank: int, leaving: Path) -> int:
    import jax

    shutdown = jax.distributed.shutdown

    def noted() -> None:
        leaving.touch()
        shutdown()

    if rank == 0:
        jax.distributed.shutdown = noted
    else:
        until(leaving.exists, 30, "rank 0, the coordinator, is done")
    return rank


def test_rank_zero_waits_for_the_others_at_the_end(tmp_path: Path) -> None:
    assert replicas(first_one_leaves_early, tmp_path / "leaving", nprocs=3) == [0, 1, 2]


def terminated(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    never_returns()


def test_sigterm_ends_a_replica() -> None:
    with pytest.raises(xmp.ReplicaDied) as raised:
        replicas(terminated)
    assert raised.value.signal_name == "SIGTERM"


def listening(rank: int) -> list[str]:
    import jax

    xmp.all_reduce(np.ones(3))  # the devices are up, gloo has met
    assert jax.process_count() == 2
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        found += [r[1] for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in inodes]
    xmp.barrier()
    return [address.partition(":")[0] for address in found]


def test_nothing_listens_off_loopback(found: dict[str, list[Any]]) -> None:
    coordinator, other = found["listening"]
    assert coordinator, "the coordinator and gloo do listen"
    assert other, "gloo does listen"
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert {*coordinator, *other} <= loopback


UNDER_ANOTHER_NAME = """
import ctypes, socket, sys
sys.path[:0] = [sys.argv[1]]
from tests.frameworks.test_jax import listening, replicas

if __name__ == "__main__":
    if ctypes.CDLL(None).unshare(0x04000000):  # CLONE_NEWUTS: the name is ours alone
        sys.exit("refused")
    socket.sethostname("127.0.0.2")  # where gloo listens when left alone
    print(replicas(listening))
"""


@pytest.mark.root
def test_gloo_does_not_listen_on_the_address_of_the_hosts_name(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNDER_ANOTHER_NAME)
    command = [sys.executable, str(script), str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    if done.stderr.strip() == "refused":
        pytest.skip("the kernel refuses namespaces of names here")
    assert done.returncode == 0, done.stderr
    assert "0100007F" in done.stdout
    assert "0200007F" not in done.stdout


def leaves_early(rank: int) -> float | None:
    """Rank 1 makes one collective call fewer, and waits for the others in JAX's shutdown."""
    return xmp.all_reduce(1.0) if rank != 1 else None


def test_ranks_that_diverge_are_named() -> None:
    with pytest.raises(
        xmp.ReplicaTimeout, match="Rank 1 had finished while ranks 0, 2 of 3"
    ) as caught:
        replicas(leaves_early, nprocs=3, hang_timeout=2)
    assert caught.value.suspects == (1,)


# --- collectives -------------------------------------------------------------------------------


def reduced(rank: int, op: str) -> Any:
    import jax
    import jax.numpy as jnp

    value = {
        "wide": np.array([2**40 + rank, 3]),
        "double": np.array([1 / 3, rank]),
        "truth": np.array([rank == 0, True]),
        "half": np.full(2, 40000.0 if op == "mean" else 2.0, np.float16),
        "odd": np.ones(2, np.longdouble),
        "empty": np.empty((0, 3)),
        "big": np.arange(2.0).astype(">f8"),
        "scalar": np.array(rank, "uint8"),
        "jax": [jnp.array([rank, 1.5]), jnp.array(rank), jnp.ones(2, jnp.bfloat16)],
        "number": (rank, 2**80, True, np.float32(rank)),
        "rest": ("word", None, jax.random.key(7)),
    }
    result = xmp.all_reduce(value, op)
    kinds = [type(each).__name__ for each in result["jax"]]
    assert kinds == ["ArrayImpl"] * 3
    assert result["jax"][0].devices() == {jax.local_devices()[0]}
    assert (jax.random.key_data(result["rest"][2]) == jax.random.key_data(value["rest"][2])).all()
    result["empty"] += 1  # writable
    result["wide"] += 0
    return {**result, "jax": list(map(np.asarray, result["jax"])), "rest": result["rest"][:2]}


def reduced_every_way(rank: int) -> Any:
    return {op: reduced(rank, op) for op in OPS}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each function returns in two replicas; one launch, the first needs no devices."""
    functions = without_devices, listening, with_jit, reduced_every_way, sent, spread_already
    return together(replicas, *functions, torch_tensor_in_jax)


@pytest.fixture(scope="module")
def by_op(found: dict[str, list[Any]]) -> list[Any]:
    """What two replicas got, by op."""
    return found["reduced_every_way"]


@pytest.mark.parametrize("op", OPS)
def test_all_reduce_over_a_tree(op: str, by_op: list[Any]) -> None:
    one, other = (each[op] for each in by_op)
    assert str(one) == str(other)

    def of(*both: Any) -> Any:
        return getattr(np, op)(np.stack([np.asarray(each) for each in both]), axis=0)

    np.testing.assert_array_equal(one["wide"], of([2**40, 3], [2**40 + 1, 3]))
    np.testing.assert_allclose(one["double"], of([1 / 3, 0], [1 / 3, 1]), rtol=1e-15)
    np.testing.assert_array_equal(one["truth"], of([True, True], [False, True]))
    np.testing.assert_allclose(one["jax"][0], of([0, 1.5], [1, 1.5]))
    exact = op in ("sum", "prod", "min", "max")
    assert {name: str(one[name].dtype) for name in ("wide", "double", "scalar", "half")} == {
        "wide": "int64" if exact else "float64",
        "double": "float64",
        "scalar": "uint8" if exact else "float64",
        "half": "float16",
    }
    truth = {"min": "bool", "max": "bool", "mean": "float64"}.get(op, "int64")
    assert str(one["truth"].dtype) == truth
    assert np.isfinite(one["half"]).all()
    assert (one["odd"].dtype, one["empty"].shape) == (np.longdouble, (0, 3))
    assert one["scalar"].shape == ()
    assert [str(each.dtype) for each in one["jax"]][::2] == ["float32", "bfloat16"]
    assert str(one["jax"][1].dtype) == ("int32" if exact else "float32")
    assert one["number"][1] == {"sum": 2**81, "prod": 2**160}.get(op, 2**80)
    assert isinstance(one["number"][3], np.float32)
    assert one["rest"] == ("word", None)


def sent(rank: int) -> Any:
    import jax
    import jax.numpy as jnp

    value = {
        "jax": jnp.full((2, 3), rank),
        "big": np.full(300_000, rank, "float64"),
        "words": "x" * 100_000,
        "key": jax.random.key(rank),
        "call": (lambda: "by value") if rank else None,
    }
    got = xmp.broadcast(value, src=1)
    for _ in range(130):  # more rounds than the coordinator keeps
        assert xmp.broadcast(rank, 1) == 1
    got["big"][0] = -1
    return (
        (isinstance(got["jax"], jax.Array), int(got["jax"].sum()), len(got["words"])),
        (int(got["big"][1:].min()), int(got["big"][0]), got["call"]()),
        jax.random.key_data(got["key"]).tolist(),
        [(len(each["a"]), each["b"]) for each in xmp.all_gather({"a": [0] * rank, "b": rank})],
        [len(each) for each in xmp.all_gather(np.ones(rank * 2_000_000, np.uint8))],
    )


def test_objects_of_any_kind_and_size(found: dict[str, list[Any]]) -> None:
    one, other = found["sent"]
    assert one == other
    assert one[0] == (True, 6, 100_000)
    assert one[1] == (1, -1, "by value")
    assert one[2] == [0, 1]
    assert one[3] == [(0, 0), (1, 1)]
    assert one[4] == [0, 2_000_000]


def spread_already(rank: int) -> str:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    data = jax.make_array_from_process_local_data(sharding, np.ones(1))
    with pytest.raises(ValueError, match="spread over several replicas already") as raised:
        xmp.all_reduce(data)
    return str(raised.value)


def test_a_global_array_is_refused_with_what_to_do(found: dict[str, list[Any]]) -> None:
    assert all("addressable_data" in text for text in found["spread_already"])


def torch_tensor_in_jax(rank: int) -> Any:
    import torch

    half = torch.ones(2, dtype=torch.bfloat16)
    return xmp.all_reduce(torch.tensor([rank, 1])), xmp.all_reduce(half)


def test_torch_tensors_stay_tensors(found: dict[str, list[Any]]) -> None:
    total, half = found["torch_tensor_in_jax"][0]
    assert type(total).__name__ == type(half).__name__ == "Tensor"
    assert (total.tolist(), half.tolist()) == ([1, 2], [2.0, 2.0])
    assert str(half.dtype) == "torch.bfloat16"


def without_devices(rank: int) -> bool:
    from jax._src import xla_bridge

    xmp.barrier()
    assert xmp.all_reduce(1.5) == 3.0
    assert xmp.broadcast("x" * rank, 1) == "x"
    return bool(xla_bridge.backends_are_initialized())


def test_what_is_small_does_not_need_the_devices(found: dict[str, list[Any]]) -> None:
    """A barrier and numbers go through the coordinator: the backend stays down."""
    assert found["without_devices"] == [False, False]


def test_alone_a_jax_program_is_a_world_of_one() -> None:
    code = """
import jax, jax.numpy as jnp, xmp
xmp.init_process_group()
assert xmp.device() is jax.local_devices()[0]
assert xmp.all_reduce(jnp.ones(2)).sum() == 2 and xmp.all_gather(1) == [1]
"""
    environment = dict(os.environ, JAX_PLATFORMS="cpu")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


def test_a_coordinator_that_comes_late_is_awaited() -> None:
    import socket

    from xmp._inside.frameworks._meeting_places import wait_for_listener

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        waiter = threading.Thread(target=wait_for_listener, args=(address, 20.0))
        waiter.start()
        assert waiter.is_alive()
        sock.listen()
        waiter.join(20)
        assert not waiter.is_alive()
