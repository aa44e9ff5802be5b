"""xmp: run a Python function on every accelerator of a host, one replica per device.

Three rings, from the ground up; each room says in its ``__init__`` what is in it:

    one host       _words      frozen values, errors; _registry: where the other rings are found
                   _rules, _plan   pure: what follows from an event; request + facts -> plan
                   _os         the only room that looks at the host: facts, ports, signals, log
                   _payload    how a function, its arguments and its outcome travel
                   _inside     what runs in a replica around the user's function; frameworks/
                   _processes  the engine: template, supervisor, replicas, the launcher's handle
                   _calls      what users call: spawn, launch, launcher, plan
                   _commands, compat, testing   the command line, other launchers' names, tests
    several hosts  _hosts      carrier/ (roll call, one verdict), engines/ (driver and agents)
    plug-ins       plugins     Ray, Paddle, Lightning, accelerate, MegEngine, data_parallel, ...
"""

from __future__ import annotations

import sys as _sys  # what has a name without "_" here would be offered as xmp's
import typing as _typing

if _sys.platform == "win32":  # said here: the imports below fail on modules that Windows lacks
    raise ImportError("xmp does not run on Windows; use WSL 2, which is a Linux")

from ._calls.launch import launch
from ._calls.launcher import launcher
from ._calls.spawn import spawn
from ._calls.verbs import default_nprocs, host_facts, plan, preload, shutdown, start_processes
from ._inside import (
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    device,
    heartbeat,
    host_index,
    init_process_group,
    local_group,
    local_rank,
    local_world_size,
    once_per_host,
    preempted,
    rank,
    rank_zero_only,
    replica,
    restart_count,
    world_size,
)
from ._inside.breakpoint import breakpoint
from ._os import signals as _signals
from ._words.errors import (
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

if _typing.TYPE_CHECKING:
    from ._calls.gang import Gang, gang
    from ._calls.job import Job
    from ._calls.run_script import run_script
    from ._inside.namespace import state
    from ._inside.sharing import MpModelWrapper, MpSerialExecutor
    from ._processes import ProcessContext, Results
    from ._words.event import Event
    from ._words.types import HostFacts, JobPlan
    from .plugins.data_parallel.call import data_parallel

__version__ = "0.2.0"  # read by the build, too

__all__ = [
    "Event",
    "Gang",
    "HostFacts",
    "HostLost",
    "Job",
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
    "breakpoint",
    "broadcast",
    "data_parallel",
    "default_nprocs",
    "device",
    "gang",
    "heartbeat",
    "host_facts",
    "host_index",
    "init_process_group",
    "launch",
    "launcher",
    "local_group",
    "local_rank",
    "local_world_size",
    "once_per_host",
    "plan",
    "preempted",
    "preload",
    "rank",
    "rank_zero_only",
    "replica",
    "restart_count",
    "run_script",
    "shutdown",
    "spawn",
    "start_processes",
    "state",
    "world_size",
]

_NOT_OURS = {"annotations"}  # what the line above the imports leaves
_LAZY = {
    "Event": "_words.event",
    "Gang": "_calls.gang",
    "HostFacts": "_words.types",
    "Job": "_calls.job",
    "JobPlan": "_words.types",
    "MpModelWrapper": "_inside.sharing",
    "MpSerialExecutor": "_inside.sharing",
    "ProcessContext": "_processes",
    "Results": "_processes",
    "data_parallel": "plugins.data_parallel.call",
    "gang": "_calls.gang",
    "run_script": "_calls.run_script",
    "state": "_inside.namespace",
}
for _name in __all__:
    # Tracebacks and reprs show the public name, not the file that it lives in.
    if _name not in _LAZY:
        globals()[_name].__module__ = "xmp"


if not _typing.TYPE_CHECKING:  # to a type checker it would say that every name is there

    def __getattr__(name: str) -> _typing.Any:
        """Import what takes longer to import than many programs want to wait."""
        if name not in _LAZY:
            raise AttributeError(f"module 'xmp' has no attribute {name!r}")
        import importlib

        with _signals.deferred():  # importlib would swallow a TimeoutError of a handler
            value = getattr(importlib.import_module(f"xmp.{_LAZY[name]}"), name)
        value.__module__ = "xmp"
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    own = {name for name in globals() if name not in _NOT_OURS}
    return sorted({*own, *_LAZY})
