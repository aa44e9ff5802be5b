"""What is measured (cases), and what has to come out of it (rows): tables, no code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import driver
from figures import Key


@dataclass(frozen=True)
class Case:
    """One script under several systems, which take turns round by round."""

    name: str
    script: str
    systems: tuple[str, ...]
    counts: tuple[int, ...] = (8,)
    """Replicas; with several, what is measured is called "seconds@64"."""
    how: str = "warm"
    """"warm": a process per system that stays; "cold": a fresh one each round; "twice": the same,
    and what is measured is called "seconds@first" and "seconds@second"; "script": the whole of a
    script from outside."""
    probe: Any = None
    """Looks from outside while all replicas wait."""
    beats: float = 0.0
    """With "twice": the part of a processor that its daemons use while nothing goes on."""
    once: bool = False
    unpinned: bool = False
    """Measured once more on all processors, where there are more than two."""


@dataclass(frozen=True)
class Target:
    """``of`` beside ``beside`` (or 1): at least so many times cheaper, or at most so many times as
    dear. Everything measured is a cost."""

    of: Key
    beside: Key | None = None
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "s"


@dataclass(frozen=True)
class Row:
    """A row of the table of promises."""

    name: str
    targets: tuple[Target, ...]
    quick: bool = False
    also: tuple[Key, ...] = ()
    """Shown without judging."""
    gpu: bool = False
    """Measured on a host with a CUDA device only."""

    @property
    def keys(self) -> set[Key]:
        """Everything that has to be measured for it."""
        of = {target.of for target in self.targets}
        return of | {target.beside for target in self.targets if target.beside} | set(self.also)


COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
METHODS = ("xmp-fork", "xmp-spawn")

CASES = {
    case.name: case
    for case in (
        Case("second", "work_entered.py", ("xmp", "torch", "floor", *METHODS), unpinned=True),
        Case(
            "first", "work_entered.py", ("xmp", "xmp-preload", "torch"), how="cold",
            unpinned=True,
        ),
        Case(
            "script", "work_train.py", ("xmp", "xmp-preload", "torch", "single"), how="script",
            unpinned=True,
        ),
        Case("heavy", "work_heavy.py", ("xmp", "torch", "floor")),
        Case("slow main", "work_slow_main.py", ("xmp", "torch")),
        Case("changed", "work_changed.py", ("xmp-changed", "xmp")),
        Case(
            "reduce", "work_reduce.py", ("xmp", "torch", "floor", *METHODS), unpinned=True
        ),
        Case("run", "work_run.py", ("xmp", "torchrun")),
        Case("ray", "work_ray.py", ("xmp", "TorchTrainer"), counts=(4,), how="twice", beats=0.1),
        Case("gang", "work_gang.py", ("xmp", "ray", "floor")),
        Case("jax", "work_jax.py", ("xmp", "multiprocessing", "floor")),
        Case("array", "work_array.py", ("xmp", "torch"), probe=driver.memory),
        Case("dict", "work_dict.py", ("xmp", "torch")),
        Case("memory", "work_entered.py", ("xmp", "torch", "floor"), probe=driver.memory),
        Case("results", "work_results.py", ("xmp", "pool")),
        Case("scaling", "work_entered.py", ("xmp", "floor"), counts=COUNTS),
        Case("peer scaling", "work_entered.py", ("torch",), counts=(1, 2, 4, 8, 16), once=True),
        Case("crash", "work_crash.py", ("xmp", "floor"), counts=(64,)),
        Case("steps", "work_steps.py", ("xmp", "torch"), counts=(4,)),
        Case("data parallel", "work_data_parallel.py", ("xmp",), counts=(2,)),
        Case("gpu", "work_gpu.py", ("xmp", "torch", "floor"), counts=(1,)),
        Case("gpu jax", "work_gpu_jax.py", ("xmp", "multiprocessing", "floor"), counts=(1,)),
        Case("idle", "work_entered.py", ("xmp",), probe=driver.idle, once=True),
        Case("import", "work_import.py", ("xmp", "multiprocessing")),
        Case("facts", "work_facts.py", ("xmp", "python")),
    )
}  # fmt: skip


def _cost(case: str, system: str, what: str = "seconds") -> Key:
    return (case, system, what)


def _faster(case: str, peer: str, times: float, of: str = "xmp", what: str = "seconds") -> Target:
    unit = "s" if what.startswith("seconds") else "B"
    return Target(_cost(case, of, what), _cost(case, peer, what), at_least=times, unit=unit)


def _floor(case: str, times: float, what: str = "seconds", unit: str = "s") -> Target:
    return Target(_cost(case, "xmp", what), _cost(case, "floor", what), at_most=times, unit=unit)


def _scaled(count: int) -> Row:
    mine = _cost("scaling", "xmp", f"each@{count}")
    targets = (
        Target(mine, _cost("scaling", "xmp", "each@8"), at_most=1.3),
        Target(mine, _cost("scaling", "floor", f"each@{count}"), at_most=1.7),
    )
    return Row(f"{count} replicas, warm: cost of each (beside 8, beside the floor)", targets)


def _methods(case: str) -> tuple[Key, ...]:
    return tuple(_cost(case, method) for method in METHODS)


ROWS = (
    Row(
        "second and later spawn, call to last replica in fn",
        (_faster("second", "torch", 50), _floor("second", 1.5)),
        quick=True,
        also=_methods("second"),
    ),
    Row("first spawn of a script that imported torch", (_faster("first", "torch", 4),)),
    Row(
        'first spawn after xmp.preload("torch") on the first line',
        (_faster("first", "torch", 20, of="xmp-preload"),),
    ),
    Row(
        "whole script, 8 replicas and one all-reduce",
        (
            _faster("script", "torch", 3),
            Target(_cost("script", "xmp"), _cost("script", "single"), at_most=2.0),
            Target(_cost("script", "xmp-preload"), _cost("script", "single"), at_most=1.4),
        ),
    ),
    Row(
        "second spawn, fn uses a heavy package (scikit-learn) the launcher has loaded",
        (_faster("heavy", "torch", 50), _floor("heavy", 1.5)),
    ),
    Row("second spawn of a script whose __main__ takes 5 s", (_faster("slow main", "torch", 50),)),
    Row(
        "environment changed (nprocs, port, PWD, COLUMNS, first-use): as warm as before",
        (Target(_cost("changed", "xmp-changed"), _cost("changed", "xmp"), at_most=1.3),),
        quick=True,
    ),
    Row(
        "call to first gloo all-reduce done, warm",
        (_faster("reduce", "torch", 40), _floor("reduce", 1.5)),
        also=_methods("reduce"),
    ),
    Row(
        "second xmp run of a torch script, process start to first all-reduce (beside torchrun)",
        (_faster("run", "torchrun", 3),),
    ),
    Row(
        "call to first JAX all-gather done, warm",
        (_faster("jax", "multiprocessing", 20), _floor("jax", 1.5)),
    ),
    *(
        Row(
            f"{which} launch over Ray in a driver, 4 replicas, call to first gloo all-reduce",
            (_faster("ray", "TorchTrainer", times, what=f"seconds@{which}"),),
        )
        for which, times in (("first", 3), ("second", 10))
    ),
    Row(
        "call of a gang, no-op by reference (beside actors of Ray, and bytes over sockets)",
        (
            _faster("gang", "ray", 2, what="seconds@no-op"),
            _floor("gang", 10, "seconds@no-op"),
        ),
    ),
    Row(
        "call of a gang, lambda by value (beside actors of Ray)",
        (_faster("gang", "ray", 2, what="seconds@lambda"),),
    ),
    Row(
        "call of a gang, 64 MB numpy to all (beside one ray.put, which gives read-only arrays)",
        (
            Target(
                _cost("gang", "xmp", "seconds@array"), _cost("gang", "ray", "seconds@array"),
                at_most=2.5,
            ),
        ),
    ),
    Row(
        "call of a gang, 1 MB numpy back from each (beside actors of Ray)",
        (_faster("gang", "ray", 1.2, what="seconds@results"),),
    ),
    Row(
        "gang up, first call done, closed (beside actors of Ray)",
        (_faster("gang", "ray", 10, what="seconds@up"),),
    ),
    Row("512 MB numpy argument, warm", (_faster("array", "torch", 60),)),
    Row("1,000,000-entry dict argument, warm", (_faster("dict", "torch", 15),)),
    Row(
        "private dirty memory of 8 replicas",
        (
            _faster("memory", "torch", 15, what="private"),
            _floor("memory", 1.5, "private", "B"),
        ),
    ),
    Row("PSS of the whole tree", (_faster("memory", "torch", 3, what="pss of tree"),)),
    Row(
        "PSS of the replicas with the 512 MB argument",
        (_faster("array", "torch", 15, what="pss"),),
    ),
    Row(
        "256 MB array from each of 8 replicas, warm (beside a pool); launcher's peak / arrays",
        (
            _faster("results", "pool", 5),
            Target(_cost("results", "xmp", "peak"), at_most=1.05, unit="×"),
        ),
    ),
    _scaled(64),
    _scaled(256),
    Row(
        "SIGKILL among 64: to the verdict, after the settle window",
        (Target(_cost("crash", "xmp", "verdict"), at_most=0.05),),
        quick=True,
    ),
    Row(
        "SIGKILL among 64: to the exception, less the settle window",
        (_floor("crash", 1.5),),
        quick=True,
    ),
    Row(
        "time of a training step, 4 replicas on 2 cores, nothing configured",
        (_faster("steps", "torch", 8),),
    ),
    Row(
        "training step with data_parallel, 2 replicas (beside bare DistributedDataParallel)",
        (
            Target(
                _cost("data parallel", "xmp"), _cost("data parallel", "xmp", "seconds@DDP"),
                at_most=1.05,
            ),
        ),
    ),
    Row(
        "one replica on a GPU, call to first NCCL all-reduce done, warm",
        (_faster("gpu", "torch", 2), _floor("gpu", 1.5)),
        gpu=True,
    ),
    Row(
        "one replica on a GPU, call to first jitted JAX step done, warm",
        (_faster("gpu jax", "multiprocessing", 1.2), _floor("gpu jax", 1.5)),
        gpu=True,
    ),
    Row(
        "idle launcher, template and supervisor over 10 s",
        (Target(_cost("idle", "xmp", "percent"), at_most=0.05, unit="%"),),
    ),
    Row(
        "import xmp, above a bare interpreter (beside import multiprocessing)",
        (Target(_cost("import", "xmp"), _cost("import", "multiprocessing"), at_most=1.5),),
        quick=True,
    ),
    Row(
        "facts of the host, read once more (beside a bare interpreter)",
        (Target(_cost("facts", "xmp"), _cost("facts", "python"), at_most=0.2),),
        quick=True,
    ),
)  # fmt: skip
