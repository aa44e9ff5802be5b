"""Gathers the facts of this host from sysfs, /dev, /proc, the environment and installed packages.

It initialises no device and imports no framework. What cannot change while this process lives is
read once; environment, affinity and loaded modules are read at every call, once per launch.

``accelerators``, ``packages``, ``resources`` and ``metadata`` gather parts of the facts;
``examination`` and ``findings`` are `xmp doctor`; ``launches``, ``holders`` and ``carried`` find
processes of launches. Tests: ``tests/host``, ``tests/commands/test_marks.py``.
"""

from __future__ import annotations

import functools
import os
import platform
import socket
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from xmp._os import proc
from xmp._os.imports import loaded_framework
from xmp._plan.clusters.launchers import FILES
from xmp._plan.runtimes._import_effects import NAMES
from xmp._words.types import HostFacts

from . import metadata, packages, resources
from .accelerators import hardware
from .holders import TPU_FILES
from .packages import initialised

__all__ = ["facts", "host_files", "variables_replaced"]

_began_with: dict[str, str] | None = None
"""The variables that count as those of this process's start, if it was given new ones since."""


def facts(
    *,
    env: Mapping[str, str] | None = None,
    root: str | Path = "/",
    loaded: tuple[str, ...] | None = None,
    frameworks: Mapping[str, str | None] | None = None,
    attributes: Mapping[str, str] | None = None,
) -> HostFacts:
    """Gather the facts of this host, in a few milliseconds and without touching a device.

    ``root`` stands for ``/`` and may be a recorded tree; ``env``, ``loaded``, ``frameworks`` and
    ``attributes`` (of the metadata server) replace this process's own. The metadata server is
    queried only on a host with TPU chips, once per process and for at most 2 s.
    """
    base = Path(root)
    variables = dict(os.environ if env is None else env)
    tpu, gpus = hardware(str(base))
    at_start = _at_start(base, variables) if env is None else {}
    if attributes is None:
        attributes = metadata.attributes(_meant(variables, at_start)) if tpu else {}
    return HostFacts(
        hostname=socket.gethostname(),
        address=_address(),
        platform=sys.platform,
        python=platform.python_version(),
        env=variables,
        tpu=dict(tpu),
        gpus=dict(gpus),
        metadata=dict(attributes),
        host_files=host_files(variables),
        cpus=resources.affinity(),
        cpu_quota=resources.cpu_quota(base),
        numa=resources.numa(str(base)),
        memory_bytes=resources.memory(base),
        frameworks=packages.installed() if frameworks is None else dict(frameworks),
        loaded=packages.loaded() if loaded is None else loaded,
        initialised=initialised(TPU_FILES if tpu else ()) if loaded is None else (),
        env_at_start=at_start,
    )


def _at_start(root: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the start values of those variables that imports write and that have changed."""
    began = _began(root) if _began_with is None else _began_with
    if not began:
        return {}
    changed = [name for name in NAMES if env.get(name, "") != began.get(name, "")]
    return {name: began.get(name, "") for name in changed}


def variables_replaced() -> None:
    """Count the present variables as those of the start: this process was given them later."""
    global _began_with
    _began_with = dict(os.environ)


@functools.lru_cache(maxsize=8)
def _began(root: Path) -> dict[str, str]:
    text = proc.text(root / "proc/self/environ")
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if entry)


def _meant(env: Mapping[str, str], at_start: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment without what ``import jax`` sets where it does not know the chips."""
    if loaded_framework("jax") is None or at_start.get(metadata.SKIP, "meant"):
        return env
    return {name: value for name, value in env.items() if name != metadata.SKIP}


def _address() -> str:
    """Return this host's address on its default route; loopback without one. Send nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket only asks the routing table.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


# --- schedulers' files of hosts ------------------------------------------------------------------


_LONGEST = 1 << 20  # bytes: 10,000 hosts with 8 slots each


def host_files(env: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the hosts, each once, by the variable that names the file."""
    found = {name: " ".join(dict.fromkeys(_text(env.get(name, "")).split())) for name in FILES}
    return {name: hosts for name, hosts in found.items() if hosts}


def _text(path: str) -> str:
    """Read a regular file; return "" for anything else: a FIFO would wait for its writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, _LONGEST).decode(errors="replace") if regular else ""
    except OSError:
        return ""
    finally:
        os.close(descriptor)
