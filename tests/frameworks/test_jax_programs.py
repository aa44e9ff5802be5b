"""Programs of JAX, flax, optax and orbax over the mesh: the numbers are those of one process."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.frameworks import replicas as any_replicas
from tests.support.stage import Stage

pytestmark = pytest.mark.peers

replicas = partial(any_replicas, runtime="jax")
GLOBAL = np.arange(32, dtype="float32").reshape(8, 4)
"""The global batch: eight samples, which two or four processes share."""


def global_batch() -> tuple[Any, Any]:
    """A mesh over all devices, and the global batch laid over it; each process gives its part."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    mine = np.split(GLOBAL, jax.process_count())[jax.process_index()]
    return mesh, jax.make_array_from_process_local_data(sharding, mine)


def sharded(rank: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh, x = global_batch()
    everywhere = NamedSharding(mesh, PartitionSpec())

    def per_shard(block: Any) -> Any:
        index = jax.lax.axis_index("data")
        return jax.lax.psum((block * (index + 1)).sum(0), "data")

    by_map = jax.jit(
        jax.shard_map(
            per_shard, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec()
        )
    )(x)

    def loss(weights: Any, x: Any) -> Any:
        return jnp.mean((x @ weights - 1) ** 2)

    grad = jax.jit(jax.grad(loss), out_shardings=everywhere)(jnp.ones(4), x)
    turned = jax.jit(lambda a: a[::-1], out_shardings=x.sharding)(x)
    return {
        "devices": (jax.process_count(), jax.local_device_count(), jax.device_count()),
        "map": np.asarray(by_map.addressable_data(0)).tolist(),
        "grad": np.asarray(grad.addressable_data(0)).tolist(),
        "turned": {
            str(shard.index[0].start): np.asarray(shard.data).tolist()
            for shard in turned.addressable_shards
        },
    }


@pytest.mark.parametrize(("nprocs", "devices"), [(2, 2), (4, 1), (4, 2)])
def test_shard_map_and_jit_over_the_mesh(
    nprocs: int, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", str(devices))
    found = replicas(sharded, nprocs=nprocs)
    count = nprocs * devices
    blocks = np.split(GLOBAL, count)
    by_map = sum((i + 1) * block.sum(0) for i, block in enumerate(blocks))
    residual = GLOBAL.sum(1) - 1
    grad = (2 / 8) * GLOBAL.T @ residual
    turned: dict[str, Any] = {}
    for each in found:
        assert each["devices"] == (nprocs, devices, count)
        np.testing.assert_allclose(each["map"], by_map)
        np.testing.assert_allclose(each["grad"], grad, rtol=1e-6)
        turned |= each["turned"]
    rows = [row for start in sorted(turned, key=int) for row in turned[start]]
    np.testing.assert_array_equal(rows, GLOBAL[::-1])


def with_multihost_utils(rank: int) -> dict[str, Any]:
    import jax
    from jax.experimental import multihost_utils
    from jax.sharding import PartitionSpec

    multihost_utils.sync_global_devices("begin")
    mesh, _ = global_batch()
    mine = np.split(GLOBAL, 2)[rank]
    spread = multihost_utils.host_local_array_to_global_array(mine, mesh, PartitionSpec("data"))
    back = multihost_utils.global_array_to_host_local_array(spread, mesh, PartitionSpec("data"))
    total = jax.jit(lambda a: a.sum())(spread)
    return {
        "one": multihost_utils.broadcast_one_to_all({"a": np.full(3, rank + 5)})["a"].tolist(),
        "gathered": multihost_utils.process_allgather(np.array([rank, 7])).tolist(),
        "tiled": multihost_utils.process_allgather(spread, tiled=True).tolist(),
        "shape": spread.shape,
        "back": np.array_equal(back, mine),
        "total": float(total),
        "equal": multihost_utils.assert_equal(np.ones(2)) is None,
    }


def test_multihost_utils() -> None:
    expected = {"one": [5, 5, 5], "gathered": [[0, 7], [1, 7]], "tiled": GLOBAL.tolist()}
    expected |= {"shape": (8, 4), "back": True, "total": float(GLOBAL.sum()), "equal": True}
    assert replicas(with_multihost_utils, nprocs=2) == [expected] * 2


# --- flax, optax, orbax ---------------------------------------------------------------------------

TRAIN = '''
import functools, json, os, sys
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen, nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import xmp

STEPS = 6
X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5]], "float32")

def batch():
    """The global batch, laid over all devices."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    index, count = jax.process_index(), jax.process_count()
    lay = lambda a: jax.make_array_from_process_local_data(sharding, np.split(a, count)[index])
    return mesh, lay(X), lay(Y)

def numbers(tree):
    return [np.asarray(a.addressable_data(0)).tolist() for a in jax.tree.leaves(tree)]

def with_nnx(rank):
    mesh, x, y = batch()
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 1, rngs=nnx.Rngs(1)))
    optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)
    state = nnx.state((model, optimizer))
    nnx.update((model, optimizer), jax.device_put(state, NamedSharding(mesh, PartitionSpec())))

    @nnx.jit
    def step(model, optimizer, x, y):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    losses = [float(step(model, optimizer, x, y)) for _ in range(STEPS)]
    return losses, numbers(nnx.state(model, nnx.Param))

class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(linen.relu(linen.Dense(4)(x)))

def with_linen(rank, folder=None):
    """As many steps, with orbax; the first attempt of the last rank fails in the middle."""
    mesh, x, y = batch()
    model, tx = Net(), optax.sgd(0.1, momentum=0.9)
    everywhere = NamedSharding(mesh, PartitionSpec())

    @functools.partial(jax.jit, out_shardings=everywhere)
    def begin(key):
        params = model.init(key, jnp.ones((1, 3)))
        return {"params": params, "opt": tx.init(params), "step": jnp.array(0)}

    @functools.partial(jax.jit, out_shardings=(everywhere, everywhere))
    def step(state, x, y):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((model.apply(p, x) - y) ** 2))(
            state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt, "step": state["step"] + 1}, loss

    state, losses, restored = begin(jax.random.key(3)), [], None
    manager = ocp.CheckpointManager(folder) if folder else None
    extra = {"rows": x}  # an array that no process has alone
    if manager and manager.latest_step() is not None:
        restored = manager.latest_step()
        wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, {**state, **extra})
        state = manager.restore(restored, args=ocp.args.StandardRestore(wanted))
        rows = state.pop("rows")
        assert rows.sharding == x.sharding and rows.shape == (16, 3)
        for shard in rows.addressable_shards:
            assert np.array_equal(shard.data, X[shard.index])
    for number in range(int(state["step"].addressable_data(0)), STEPS):
        state, loss = step(state, x, y)
        losses.append(float(loss))
        if manager and number == 2:
            manager.save(number, args=ocp.args.StandardSave({**state, **extra}))
            manager.wait_until_finished()
            if xmp.restart_count() == 0 and rank == jax.process_count() - 1:
                raise RuntimeError("preempted")
    if manager:
        manager.close()
    return restored, losses, numbers(state["params"])

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", False)
    folder = sys.argv[1]
    say = lambda name, found: print(json.dumps({name: list(found)}), flush=True)
    for count in (1, 2):
        say(f"nnx {count}", xmp.spawn(with_nnx, nprocs=count, join=False).results())
    say("one", xmp.spawn(with_linen, nprocs=1, join=False).results())
    say("two", xmp.spawn(with_linen, (folder,), nprocs=2, max_restarts=1))
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the programs found, by name; one process imports flax and orbax for all of them."""
    stage = Stage(tmp_path_factory.mktemp("programs"))
    try:
        folder = tmp_path_factory.mktemp("checkpoints")
        done = stage.run(TRAIN, str(folder), timeout=150)
    finally:
        stage.end()
    found: dict[str, Any] = {"err": done.err}
    for line in done.out.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_flax_nnx_and_optax_train_as_one_process(trained: dict[str, Any]) -> None:
    ((losses, weights),) = trained["nnx 1"]
    assert losses[-1] < losses[0]
    assert len(trained["nnx 2"]) == 2
    for each_losses, each_weights in trained["nnx 2"]:
        same(each_losses, losses)
        same(each_weights, weights)


def test_orbax_restores_what_the_attempt_before_has_saved(trained: dict[str, Any]) -> None:
    ((restored, losses, weights),) = trained["one"]
    assert restored is None
    for step, rest, each_weights in trained["two"]:
        assert step == 2
        same(rest, losses[3:])  # only the steps after the checkpoint
        same(each_weights, weights)
    assert "restart 1 of 1: rank 1 raised RuntimeError: preempted" in trained["err"]
