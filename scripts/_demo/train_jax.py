import time

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import xmp


def loss_of(weights, x, y, total):
    hidden = jax.nn.relu(x @ weights["w1"] + weights["b1"])
    scores = jax.nn.log_softmax(hidden @ weights["w2"] + weights["b2"])
    return -jnp.take_along_axis(scores, y[:, None], 1).sum() / total


@jax.jit
def accuracy_of(weights, x, y):
    hidden = jax.nn.relu(x @ weights["w1"] + weights["b1"])
    return jnp.mean((hidden @ weights["w2"] + weights["b2"]).argmax(1) == y)


gradient_of = jax.jit(jax.grad(loss_of))


@jax.jit
def update(weights, speed, gradient):
    speed = jax.tree.map(lambda s, g: 0.9 * s + g, speed, gradient)
    return jax.tree.map(lambda w, s: w - 0.3 * s, weights, speed), speed


def _mp_fn(rank, epochs=16, batch=128):
    jax.config.update("jax_enable_x64", True)
    xmp.init_process_group()
    digits = load_digits()
    x, y = digits.data / 16, digits.target
    random = np.random.default_rng(0)  # the same first weights, and the same order, everywhere
    weights = {
        "w1": random.normal(0, 0.1, (64, 64)),
        "b1": np.zeros(64),
        "w2": random.normal(0, 0.1, (64, 10)),
        "b2": np.zeros(10),
    }
    speed = jax.tree.map(np.zeros_like, weights)
    train, test = np.split(random.permutation(len(x)), [1437])
    curve, start = [], time.perf_counter()
    for epoch in range(epochs):
        order = random.permutation(train)
        for step in np.split(order, range(batch, len(order), batch)):
            mine = step[rank :: xmp.world_size()]  # this replica's part of the global batch
            gradient = gradient_of(weights, x[mine], y[mine], len(step))
            weights, speed = update(weights, speed, xmp.all_reduce(gradient))
        curve.append(float(accuracy_of(weights, x[test], y[test])))
        if rank == 0:
            print(f"jax, epoch {epoch + 1:2}: test accuracy {curve[-1]:.3f}", flush=True)
    seconds = time.perf_counter() - start
    return {"curve": curve, "seconds": seconds, "weights": jax.tree.leaves(weights)}


if __name__ == "__main__":
    results = xmp.spawn(_mp_fn, nprocs=8, runtime="jax")
    print("accuracy of each replica:", [result["curve"][-1] for result in results])
