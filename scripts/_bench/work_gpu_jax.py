"""Up to the first jitted JAX step on a GPU."""

import jax
import jax.numpy as jnp
from measured import Meeting, serve, timed


def fn(rank: int, meeting: Meeting) -> None:
    value = jax.jit(lambda x: (x @ x.T).sum())(jnp.ones((64, 64)))
    assert float(value) == 64**3
    meeting.mark(rank)
    assert jax.devices()[0].platform == "gpu"


if __name__ == "__main__":
    serve(timed(fn, runtime="jax", timeout=300))
