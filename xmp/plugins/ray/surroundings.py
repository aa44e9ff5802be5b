"""What replicas inherit on a host: its variables and its ``sys.path``, without Ray's part of them.

A Ray worker is what its raylet is, and beside that has what the ``runtime_env`` of the job and of
the actor have made of it: variables, the working folder, the interpreter of ``pip``. Replicas have
the same, so that ``ray`` can be used in them, too: ``ray.init(address=...)`` there joins the
cluster as another driver. The address is the driver's
``ray.get_runtime_context().gcs_address``, and tasks need processors that the launch has not taken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from xmp._hosts.engines.environment import without_launchers
from xmp._hosts.engines.program_path import ProgramPath, path_here
from xmp._os import probe

__all__ = ["for_agent", "is_rays", "path", "without_rays"]

_SET_BY_RAY = ("RAY_", "TPU_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT", "SPT_NOENV")
"""Ray 2.60 sets OMP_NUM_THREADS, PYTHONBREAKPOINT and SPT_NOENV (_private/worker.py, setproctitle)
and, where an actor has TPU chips, TPU_VISIBLE_CHIPS, TPU_CHIPS_PER_HOST_BOUNDS and TPU_HOST_BOUNDS
(_private/accelerators/tpu.py)."""
_OF_RAYLETS = ("RAY_CLIENT_MODE", "RAY_LD_PRELOAD_ON_WORKERS")
"""Every raylet has them (_private/client_mode_hook.py, _private/services.py)."""
_SECRETS = ("RAY_AUTH_TOKEN",)
"""With it a process can run programs on every node (docs/guide/security.md)."""


# --- variables ---------------------------------------------------------------------------------


def for_agent() -> dict[str, str]:
    """Return this process's variables, as if neither Ray nor another launcher had started it.

    What the user sets by ``runtime_env`` stays, and so do GPU masks: Ray gives each actor some.
    """
    own = without_rays(os.environ, _of_raylet(), _runtime_env().get("env_vars") or {})
    facts = replace(probe.facts(), env=own, env_at_start={}, initialised=(), loaded=())
    return without_launchers(facts)


def without_rays(
    worker: Mapping[str, str], host: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return a worker's variables; those that Ray sets as ``host`` has them, but for the user's.

    ``given``: what the user sets in ``runtime_env``.
    """
    kept = {
        name: value
        for name, value in worker.items()
        if name in given or not name.startswith(_SET_BY_RAY)
    }
    before = {n: v for n, v in host.items() if n.startswith(_SET_BY_RAY) and n not in _OF_RAYLETS}
    return {n: v for n, v in {**before, **kept}.items() if n not in _SECRETS or n in given}


def _of_raylet() -> dict[str, str]:
    """Return the variables of the process that has started this one (proc_pid_environ(5))."""
    raylet = os.environ.get("RAY_RAYLET_PID") or os.getppid()
    try:
        with open(f"/proc/{raylet}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _runtime_env() -> Mapping[str, Any]:
    """Return that of the job and of the actor."""
    import ray

    found: Mapping[str, Any] = ray.get_runtime_context().runtime_env
    return found


# --- sys.path ----------------------------------------------------------------------------------


def path(driver: ProgramPath) -> list[str]:
    """Return ``sys.path`` of replicas: the driver's folders that exist here, and this one's.

    Ray adds the folder of the driver's script and its working folder (2.60,
    _private/worker.py): only the first is in the path of a script, and none of them may hide what
    a ``working_dir`` brings.
    """
    own = [each for each in sys.path if not is_rays(each)]
    return path_here(driver, own, own_first=bool(_runtime_env().get("working_dir")))


def is_rays(path: str) -> bool:
    """Return whether a path is in Ray's own folder.

    Links are followed: Python does so for the folder of a script, and Ray's workers are scripts.
    """
    import ray

    folder = os.path.realpath(os.path.dirname(str(ray.__file__)))
    return os.path.realpath(path).startswith(folder + os.sep)
