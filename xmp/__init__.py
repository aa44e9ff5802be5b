"""xmp: run a Python function on every accelerator of a host, one replica per device.

A map of the rest, from the face down; each floor knows only those below it:

    _spawn        the verbs: spawn, start_processes, plan, facts, preload; _checks their input
    _host         one host: facts -> plan -> leases -> engine
    _processes/   the engine: template, supervisor, replicas, and the launcher's handle on them
    _inside       what user code calls in a replica; _frameworks/ readies torch and JAX there
    _sharing      MpModelWrapper, MpSerialExecutor; _preemption: preempted; _breakpoint
    _planner      pure: request + facts -> plan, by _runtimes/ (one file each) and _clusters/
    _watch        pure: who failed first, and what is done about it
    _probe, _ports, _payload   effects: what the host says, held ports, how calls travel
    _types, _errors            the words
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._breakpoint import breakpoint
from ._errors import (
    HostLost,
    PlanError,
    PortError,
    ReplicaDied,
    ReplicaError,
    ReplicaRaised,
    ReplicaTimeout,
    StartError,
    XmpError,
)
from ._inside import (
    all_gather,
    all_reduce,
    barrier,
    beat,
    broadcast,
    device,
    host_index,
    init_process_group,
    local_rank,
    local_world_size,
    once,
    rank,
    rank_zero_only,
    replica,
    restart_count,
    world_size,
)
from ._preemption import preempted
from ._sharing import MpModelWrapper, MpSerialExecutor
from ._spawn import device_count, facts, plan, preload, spawn, start_processes

if TYPE_CHECKING:
    from ._processes.context import ProcessContext
    from ._processes.results import Results
    from ._types import Event, HostFacts, JobPlan

__all__ = [
    "Event",
    "HostFacts",
    "HostLost",
    "JobPlan",
    "MpModelWrapper",
    "MpSerialExecutor",
    "PlanError",
    "PortError",
    "ProcessContext",
    "ReplicaDied",
    "ReplicaError",
    "ReplicaRaised",
    "ReplicaTimeout",
    "Results",
    "StartError",
    "XmpError",
    "all_gather",
    "all_reduce",
    "barrier",
    "beat",
    "breakpoint",
    "broadcast",
    "device",
    "device_count",
    "facts",
    "host_index",
    "init_process_group",
    "local_rank",
    "local_world_size",
    "once",
    "plan",
    "preempted",
    "preload",
    "rank",
    "rank_zero_only",
    "replica",
    "restart_count",
    "spawn",
    "start_processes",
    "world_size",
]

_LAZY = {
    "Event": "_types",
    "HostFacts": "_types",
    "JobPlan": "_types",
    "ProcessContext": "_processes.context",
    "Results": "_processes.results",
}
for _name in __all__:
    # Tracebacks and reprs show the public name, not the file that it lives in.
    if _name not in _LAZY:
        globals()[_name].__module__ = "xmp"


def __getattr__(name: str) -> Any:
    """Classes of modules whose import takes longer than many programs want to wait."""
    if name not in _LAZY:
        raise AttributeError(f"module 'xmp' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"xmp.{_LAZY[name]}"), name)
    value.__module__ = "xmp"
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
