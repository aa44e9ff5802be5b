"""``xmp doctor``: is Ray here, and which hosts has the cluster that ``engine="ray"`` would use?

Another process connects, so that the answer comes in bounded time: Ray itself waits for a cluster
that does not answer for half a minute and more (``ray.init``, Ray 2.60).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from xmp._os.probe.findings import Finding
from xmp._processes.system import interpreter

from .cluster import hosts_of, is_installed

__all__ = ["findings", "look"]

_WAIT = 15.0
"""Seconds; to connect takes 1 to 4."""
_INSTALL = "pip install ray"
_SHOWN = 8
"""Hosts of a large cluster."""


def findings(engine: str | None) -> list[Finding]:
    """Say what there is; with ``--engine ray`` a fault is a problem.

    Connects only with that, or where RAY_ADDRESS names a cluster.
    """
    asked = engine == "ray"
    if not is_installed():
        text = "Ray is not installed" + ("" if asked else ', which only engine="ray" needs')
        return [Finding("problem" if asked else "note", text, _INSTALL)]
    version = f"Ray {importlib.metadata.version('ray')}"
    address = os.environ.get("RAY_ADDRESS", "")
    where = "RAY_ADDRESS" if address else "the file ray_current_cluster"
    if not address and asked:
        address = _running_here()
    if not address:
        return [Finding("note", f"{version}{_without(asked)}")]
    found = _looked(address)
    if isinstance(found, str):
        text = f"{version}: the cluster at {address} ({where}) cannot be reached: {found}"
        return [Finding("problem" if asked else "warning", text, _advice(address))]
    return [Finding("note", f"{version}: {_described(address, found)}"), *_empty(found, asked)]


def _without(asked: bool) -> str:
    unset = "RAY_ADDRESS is not set"
    if not asked:
        return f"; {unset}: `xmp doctor --engine ray` looks for a cluster"
    return f'; {unset} and `ray start` has left no cluster here: engine="ray" would start one'


def _running_here() -> str:
    """Return the cluster of the latest `ray start`, which ``ray.init()`` takes (Ray 2.60).

    ray/_common/utils.py, get_ray_address_file.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text().strip()
    except OSError:
        return ""


def _looked(address: str) -> dict[str, Any] | str:
    """Return what the cluster has, or why it does not answer."""
    command = interpreter.fresh_interpreter("xmp.plugins.ray.doctor", "look")
    env = {**os.environ, "RAY_ADDRESS": address}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    try:
        out, err = process.communicate(timeout=_WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer within {_WAIT:g} s"
    lines = out.decode(errors="replace").splitlines()
    if process.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    said = [line.strip() for line in err.decode(errors="replace").splitlines() if line.strip()]
    return said[-1] if said else f"exit code {process.returncode}"


def look() -> None:
    """Connect, in a process of its own, and write what the cluster has as a line of JSON."""
    import logging

    import ray

    ray.init(log_to_driver=False, logging_level=logging.CRITICAL)
    hosts = [host._asdict() for host in hosts_of(ray)]
    mode = "token" if os.environ.get("RAY_AUTH_MODE", "").lower() == "token" else "disabled"
    os.write(1, json.dumps({"hosts": hosts, "mode": mode}).encode() + b"\n")
    ray.shutdown()


def _described(address: str, found: dict[str, Any]) -> str:
    hosts = [_host(each) for each in found["hosts"]]
    more = f" and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else ""
    what = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
    names = ", ".join(hosts[:_SHOWN])
    return f"the cluster at {address} has {what}: {names}{more}; authentication: {found['mode']}"


def _host(known: dict[str, Any]) -> str:
    counts = known["resources"]
    has = [f"{counts[name]:g} {name}" for name in ("CPU", "GPU", "TPU") if counts.get(name)]
    return f"{known['name']} ({known['address']}: {', '.join(has) or 'no CPU'})"


def _empty(found: dict[str, Any], asked: bool) -> list[Finding]:
    text = "no host of the Ray cluster has a CPU that a launch could take"
    free = [each for each in found["hosts"] if each["resources"].get("CPU")]
    return [] if free else [Finding("problem" if asked else "warning", text, "see `ray status`")]


def _advice(address: str) -> str:
    if address.startswith("ray://"):
        return "does `ray start` there listen for clients (port 10001), and is ray[client] here?"
    return (
        "is it the address of the head, has `ray start` joined this machine to it, and have both "
        "the same token and RAY_AUTH_MODE (docs/guide/security.md)?"
    )
