"""Train with JAX, flax and orbax; after a failure go on from the last checkpoint.

Needs jax, flax, optax and orbax-checkpoint: ``python jax_restart.py FOLDER``.
"""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import xmp


@nnx.jit
def step(model: nnx.Linear, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def train(rank: int, folder: str) -> tuple[int, float]:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    over_mesh = NamedSharding(mesh, PartitionSpec("data"))
    data = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    mine = data[rank :: xmp.world_size()]  # this process's part of the global batch
    x = jax.make_array_from_process_local_data(over_mesh, mine)
    y = jax.make_array_from_process_local_data(over_mesh, mine.sum(1, keepdims=True))

    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    state = jax.device_put(nnx.state((model, optimizer)), everywhere)
    with ocp.CheckpointManager(folder) as manager:
        done = manager.latest_step() or 0
        if done:
            like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            state = manager.restore(done, args=ocp.args.StandardRestore(like))
        nnx.update((model, optimizer), state)
        for number in range(done + 1, (done // 40 + 1) * 40 + 1):
            loss = step(model, optimizer, x, y)
            if number % 20 == 0:
                state = nnx.state((model, optimizer))
                manager.save(number, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
                if number == 20 and xmp.restart_count() == 0:
                    raise RuntimeError("the host was preempted")
    return done, float(loss)


if __name__ == "__main__":
    results = xmp.spawn(train, (os.path.abspath(sys.argv[1]),), nprocs=2, max_restarts=1)
    print("went on after step", results[0][0])
    print("loss below 0.001:", [loss < 0.001 for _, loss in results])
