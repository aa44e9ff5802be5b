"""Starts xmp's replicas for one of Lightning's launchers: of the Trainer's, or of Fabric's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from xmp._call_checks import check_body
from xmp._clusters import per_device
from xmp._errors import PlanError
from xmp._launcher import as_for_spawn
from xmp._spawn import launched
from xmp._types import WorldByHand

__all__ = ["check_accelerator", "is_started", "start"]

_RUNTIMES = {"cpu": ("cpu",), "cuda": ("cuda", "rocm"), "xpu": ("xpu",)}
"""The runtimes that replicas use for each of torch's types of device: NVIDIA's, and AMD's."""

_WORDS = (
    "With Lightning these are Trainer(devices=…) and, for the number of hosts, "
    "Trainer(num_nodes=…)."
)


def is_started(environment: Any) -> bool:
    """Whether a launcher has already started a process for every device; this is one of them."""
    external = environment is not None and environment.creates_processes_externally
    return bool(external) or per_device.started(os.environ) is not None


def check_accelerator(accelerator: Any, devices: Any) -> None:
    """Raise PlanError for an accelerator on which xmp starts no replicas for Lightning."""
    kinds = {getattr(each, "type", None) or type(each).__name__ for each in devices or ()}
    if kinds and not kinds <= set(_RUNTIMES):
        raise PlanError(
            f"strategy='xmp' with {type(accelerator).__name__} ({', '.join(sorted(kinds))}): xmp "
            f"starts Lightning's replicas on {', '.join(_RUNTIMES)}. Give "
            "Trainer(accelerator='cpu') or 'cuda', or another strategy"
        )


def start(
    strategy: Any, body: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """Run ``body(*args)`` in a replica for each of the strategy's devices; a ProcessContext.

    Raises what ``xmp.spawn`` raises; PlanError in Lightning's words.
    """
    check_body(body)
    given = {**options, **_devices(strategy), "join": False}
    call: SimpleNamespace = as_for_spawn(body, args, {}, given)
    try:
        return launched(call, _world(strategy))
    except PlanError as error:
        error._add(_WORDS)
        raise


def _devices(strategy: Any) -> dict[str, Any]:
    """The options ``nprocs``, ``runtime`` and ``devices`` for the strategy's devices."""
    kind = strategy.parallel_devices[0].type
    found: dict[str, Any] = {"nprocs": strategy.num_processes, "runtime": _runtime(kind)}
    if kind != "cpu":
        found["devices"] = [each.index for each in strategy.parallel_devices]
    return found


def _runtime(kind: str) -> str:
    import torch

    is_amds = kind == "cuda" and torch.version.hip is not None
    return _RUNTIMES[kind][1 if is_amds else 0]


def _world(strategy: Any) -> WorldByHand | None:
    """The world of several hosts that Lightning's variables and ``num_nodes`` name."""
    if strategy.num_nodes == 1:
        return None
    environment, count = strategy.cluster_environment, strategy.num_processes
    return WorldByHand(
        rank_start=environment.node_rank() * count,
        world_size=strategy.num_nodes * count,
        master_ip=environment.main_address,
        port=environment.main_port,
    )
