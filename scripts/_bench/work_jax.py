"""Up to the first JAX all-gather on a mesh of one CPU device per process."""

import jax
import numpy as np
from jax.experimental import multihost_utils
from measured import Meeting, serve, system, timed
from ports import free_port


def join(rank: int, count: int, port: int) -> None:
    if system().startswith("xmp"):
        return  # the mesh is there
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)


def fn(rank: int, meeting: Meeting, port: int) -> None:
    join(rank, meeting.count, port)
    ranks = multihost_utils.process_allgather(np.array([rank]))
    meeting.mark(rank)
    assert ranks.ravel().tolist() == list(range(meeting.count))
    if not system().startswith("xmp"):
        jax.distributed.shutdown()  # a coordinator that just ends aborts the others


def measure(meeting: Meeting) -> dict[str, float]:
    return timed(fn, (free_port(),), runtime="jax")(meeting)


if __name__ == "__main__":
    serve(measure)
