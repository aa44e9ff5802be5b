"""Part 1: the ``_mp_fn`` of the guide on many replicas, and once more on one, to compare."""

from __future__ import annotations

import contextlib
import importlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import xmp

MODULES = {"cpu": "train_torch", "cuda": "train_torch", "jax": "train_jax"}
STAGES = ("called", "received", "loaded", "forked", "born", "ready", "entered", "left")
STEPS_PER_EPOCH = 12  # 1,437 digits in global batches of 128
TOLERANCE = 1e-6
LEAST_ACCURACY = 0.95


@dataclass(frozen=True)
class Run:
    """What one training run showed."""

    runtime: str
    framework: str
    stages: tuple[dict[str, float], ...]
    """For each rank, when it reached which stage, in seconds since ``spawn`` was called."""
    later: float
    """Seconds from a later call of ``spawn`` until its last replica was in the function."""
    steps_per_second: float
    curve: tuple[float, ...]
    """Test accuracy after each epoch."""
    between_replicas: float
    """The largest difference of any weight between any two replicas."""
    to_one_process: float
    """The largest difference of any weight to one process on the same global batches."""

    @property
    def replicas(self) -> int:
        return len(self.stages)

    @property
    def call_to_function(self) -> float:
        """Seconds from the call of ``spawn`` until the last replica was in the function."""
        return max(stages["entered"] for stages in self.stages)

    def faults(self) -> list[str]:
        """Return what was promised and did not come true."""
        wrong = []
        if self.curve[-1] < LEAST_ACCURACY:
            wrong.append(f"{self.framework}: accuracy {self.curve[-1]:.3f} < {LEAST_ACCURACY}")
        if self.between_replicas > 0:
            wrong.append(f"{self.framework}: replicas differ by {self.between_replicas:.1e}")
        if self.to_one_process > TOLERANCE:
            wrong.append(f"{self.framework}: one process differs by {self.to_one_process:.1e}")
        return wrong


def train(runtime: str, nprocs: int | None, epochs: int) -> Run:
    """Train with ``nprocs`` replicas, then with one, and compare."""
    module = importlib.import_module(MODULES[runtime])
    called = time.monotonic()
    results = xmp.spawn(module._mp_fn, args=(epochs,), nprocs=nprocs, runtime=runtime)
    again = time.monotonic()
    later = xmp.spawn(nothing, nprocs=nprocs, runtime=runtime)
    # Naming a start method gives even a single replica its own process.
    alone = xmp.spawn(
        quietly,
        args=(module._mp_fn, epochs),
        nprocs=1,
        runtime=runtime,
        start_method="forkserver",
    )
    weights = [flat(result["weights"]) for result in results]
    stages = tuple(stages_of(timeline, called) for timeline in results.timeline.values())
    return Run(
        runtime=runtime,
        framework="JAX" if runtime == "jax" else "torch",
        stages=stages,
        later=max(stages_of(timeline, again)["entered"] for timeline in later.timeline.values()),
        steps_per_second=epochs * STEPS_PER_EPOCH / results[0]["seconds"],
        curve=tuple(results[0]["curve"]),
        between_replicas=max(difference(weights[0], other) for other in weights),
        to_one_process=difference(weights[0], flat(alone[0]["weights"])),
    )


def nothing(rank: int) -> None:
    """Do what a launch costs alone."""


def quietly(rank: int, train: Callable[..., dict[str, Any]], epochs: int) -> dict[str, Any]:
    """``train`` without its progress lines: they were shown once already."""
    with contextlib.redirect_stdout(io.StringIO()):
        return train(rank, epochs)


def stages_of(timeline: Any, called: float) -> dict[str, float]:
    return {stage: getattr(timeline, stage) / 1e9 - called for stage in STAGES}


def flat(weights: list[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(weight).ravel() for weight in weights])


def difference(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(left - right).max())
