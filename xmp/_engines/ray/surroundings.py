"""What replicas inherit on a host: its variables and its ``sys.path``, without Ray's part of them.

A Ray worker is what its raylet is, and beside that has what the ``runtime_env`` of the job and of
the actor have made of it: variables, the working folder, the interpreter of ``pip``. Replicas have
the same, so that ``ray`` can be used in them, too: ``ray.init(address=...)`` there joins the
cluster as another driver. The address is the driver's
``ray.get_runtime_context().gcs_address``, and tasks need processors that the launch has not taken.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xmp import _probe
from xmp._engines.environment import without_launchers

__all__ = ["for_agent", "is_packages", "of_program", "path", "without_rays"]

_SET_BY_RAY = ("RAY_", "TPU_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")
"""Ray 2.60 sets OMP_NUM_THREADS and PYTHONBREAKPOINT (_private/worker.py) and, where an actor has
TPU chips, TPU_VISIBLE_CHIPS, TPU_CHIPS_PER_HOST_BOUNDS and TPU_HOST_BOUNDS
(_private/accelerators/tpu.py)."""


# --- variables ---------------------------------------------------------------------------------


def for_agent() -> dict[str, str]:
    """This process's variables, as if neither Ray nor another launcher had started it.

    What the user sets by ``runtime_env`` stays, and so do GPU masks: Ray gives each actor some.
    """
    own = without_rays(os.environ, _of_raylet(), _of_runtime_env())
    facts = replace(_probe.facts(), env=own, env_at_start={}, initialised=(), loaded=())
    return without_launchers(facts)


def without_rays(
    worker: Mapping[str, str], host: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a worker; those that Ray sets as ``host`` has them, but for the user's.

    ``given``: what the user sets in ``runtime_env``.
    """
    kept = {
        name: value
        for name, value in worker.items()
        if name in given or not name.startswith(_SET_BY_RAY)
    }
    before = {name: value for name, value in host.items() if name.startswith(_SET_BY_RAY)}
    return {**before, **kept}


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


def _of_runtime_env() -> Mapping[str, str]:
    """What the job and the actor set by ``env_vars``."""
    import ray

    given: Any = ray.get_runtime_context().runtime_env
    found: Mapping[str, str] = given.get("env_vars") or {}
    return found


# --- sys.path ----------------------------------------------------------------------------------

_PACKAGES = re.compile(r"/(site|dist)-packages(/|$)|/python\d+\.zip$")


def path(driver: Sequence[str]) -> list[str]:
    """This process's ``sys.path`` without Ray's folders; then the driver's, where they exist here.

    Ray itself adds the folder of the driver's script and its working folder (2.60,
    _private/worker.py), but not what the script has added to ``sys.path``.
    """
    import ray

    rays = os.path.dirname(os.path.abspath(ray.__file__)) + os.sep
    own = [each for each in sys.path if not each.startswith(rays)]
    return [*own, *(each for each in driver if each not in own and os.path.isdir(each))]


def of_program(entries: Sequence[str]) -> list[str]:
    """Of a driver's ``sys.path``, what may be the user's own modules.

    Not Python's own and no packages: hosts have theirs.
    """
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    found = (os.path.abspath(each) for each in entries)
    return [each for each in found if not each.startswith(own) and not is_packages(each)]


def is_packages(folder: str) -> bool:
    """Whether pip installs packages into it."""
    return bool(_PACKAGES.search(folder))
