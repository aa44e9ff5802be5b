"""The variables of an agent that an actor starts: the host's own, without Ray's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from xmp import _probe
from xmp._engines.environment import without_launchers

__all__ = ["for_agent"]

_SET_BY_RAY = ("RAY_", "TPU_", "OMP_NUM_THREADS")
"""Ray 2.60 sets OMP_NUM_THREADS (_private/worker.py) and, where an actor has TPU chips,
TPU_VISIBLE_CHIPS, TPU_CHIPS_PER_HOST_BOUNDS and TPU_HOST_BOUNDS (_private/accelerators/tpu.py)."""


def for_agent(runtime_env: Mapping[str, str]) -> dict[str, str]:
    """This process's variables, as if neither Ray nor another launcher had started it.

    ``runtime_env``: what the user sets there. GPU masks stay: Ray gives each actor some of them.
    """
    host, own = _of_raylet(), dict[str, str]()
    for name, value in {**host, **os.environ}.items():
        if name in runtime_env or not name.startswith(_SET_BY_RAY):
            if name in os.environ:
                own[name] = value
        elif name in host:
            own[name] = host[name]
    facts = replace(_probe.facts(), env=own, env_at_start={}, initialised=(), loaded=())
    return without_launchers(facts)


def _of_raylet() -> dict[str, str]:
    """The variables of the process that has started this one (proc_pid_environ(5))."""
    raylet = os.environ.get("RAY_RAYLET_PID") or os.getppid()
    try:
        with open(f"/proc/{raylet}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}
