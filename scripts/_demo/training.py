"""Part 1: the README's own ``_mp_fn`` on many replicas, and once more on one, to compare."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import xmp

MODULES = {"cpu": "train_torch", "cuda": "train_torch", "jax": "train_jax"}
STEPS_PER_EPOCH = 12  # 1,437 digits in global batches of 128
TOLERANCE = 1e-6
LEAST_ACCURACY = 0.95


@dataclass(frozen=True)
class Run:
    """What one training run showed; times in seconds since ``spawn`` was called."""

    runtime: str
    framework: str
    replicas: int
    reached: tuple[float, ...]
    """When each replica was in the function, in rank order."""
    ended: tuple[float, ...]
    steps_per_second: float
    curve: tuple[float, ...]
    """Test accuracy after each epoch."""
    between_replicas: float
    """The largest difference of any weight between any two replicas."""
    to_one_process: float
    """The largest difference of any weight to one process on the same global batches."""

    def faults(self) -> list[str]:
        """What was promised and did not come true."""
        wrong = []
        if self.curve[-1] < LEAST_ACCURACY:
            wrong.append(f"{self.framework}: accuracy {self.curve[-1]:.3f} < {LEAST_ACCURACY}")
        if self.between_replicas > 0:
            wrong.append(f"{self.framework}: replicas differ by {self.between_replicas:.1e}")
        if self.to_one_process > TOLERANCE:
            wrong.append(f"{self.framework}: one process differs by {self.to_one_process:.1e}")
        return wrong


def timed(
    rank: int, train: Callable[..., dict[str, Any]], epochs: int
) -> tuple[float, float, dict[str, Any]]:
    """``train``, with the moments at which it began and ended on the clock all processes share."""
    reached = time.monotonic()
    result = train(rank, epochs)
    return reached, time.monotonic(), result


def train(runtime: str, nprocs: int | None, epochs: int) -> Run:
    """Train with ``nprocs`` replicas, then with one, and compare."""
    module = importlib.import_module(MODULES[runtime])
    called = time.monotonic()
    results = xmp.spawn(timed, args=(module._mp_fn, epochs), nprocs=nprocs, runtime=runtime)
    print("once more in one process, on the same global batches")
    # Naming a start method gives even a single replica a process of its own.
    alone = xmp.spawn(
        timed, args=(module._mp_fn, epochs), nprocs=1, runtime=runtime, start_method="forkserver"
    )
    weights = [flat(result["weights"]) for _, _, result in results]
    outcome = results[0][2]
    return Run(
        runtime=runtime,
        framework="JAX" if runtime == "jax" else "torch",
        replicas=len(results),
        reached=tuple(reached - called for reached, _, _ in results),
        ended=tuple(ended - called for _, ended, _ in results),
        steps_per_second=epochs * STEPS_PER_EPOCH / outcome["seconds"],
        curve=tuple(outcome["curve"]),
        between_replicas=max(difference(weights[0], other) for other in weights),
        to_one_process=difference(weights[0], flat(alone[0][2]["weights"])),
    )


def flat(weights: list[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(weight).ravel() for weight in weights])


def difference(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(left - right).max())
