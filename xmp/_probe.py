"""Looks at the host and says what it is: the only reader of sysfs, /dev, /proc and the environment.

It initialises no device and imports no framework. What cannot change while this process lives is
read once; environment, affinity and loaded modules are read at every call, since every spawn asks.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ._topology import PCI_VENDOR, generation_of_pci
from ._types import HostFacts

__all__ = ["facts"]

PACKAGES = {
    "torch": ("torch",),
    "torch_xla": ("torch_xla",),
    "torch_tpu": ("torch_tpu",),
    "jax": ("jax",),
    "jaxlib": ("jaxlib",),
    "libtpu": ("libtpu", "libtpu-nightly"),
    "jax_cuda_plugin": ("jax-cuda13-plugin", "jax-cuda12-plugin"),
    "jax_rocm_plugin": ("jax-rocm7-plugin", "jax-rocm60-plugin"),
    "libneuronxla": ("libneuronxla",),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu"),
}
"""Import name, and the distributions that bring it."""

LOADED = (
    "torch",
    "torch.distributed",
    "torch_xla",
    "torch_tpu",
    "numpy",
    "numpy.random",
    "jax",
    "jax.numpy",
    "jaxlib",
    "paddle",
)
"""Modules worth naming when this process has them."""


def facts(
    *,
    env: Mapping[str, str] | None = None,
    root: str | Path = "/",
    loaded: tuple[str, ...] | None = None,
    packages: Mapping[str, str | None] | None = None,
) -> HostFacts:
    """What this host is, in a few milliseconds and without touching a device.

    ``root`` stands for ``/`` and may be a recorded tree; ``env``, ``loaded`` and ``packages``
    replace this process's own.
    """
    base = str(root)
    tpu, gpus = _hardware(base)
    return HostFacts(
        hostname=socket.gethostname(),
        address=_address(),
        platform=sys.platform,
        python=platform.python_version(),
        env=dict(os.environ if env is None else env),
        tpu=dict(tpu),
        gpus=dict(gpus),
        cpus=_affinity(),
        cpu_quota=_cpu_quota(Path(base)),
        numa=_numa(base),
        memory_bytes=_memory(Path(base)),
        frameworks=_installed(tuple(sys.path)) if packages is None else dict(packages),
        loaded=_loaded() if loaded is None else loaded,
    )


def _loaded() -> tuple[str, ...]:
    return tuple(name for name in LOADED if name in sys.modules)


def _affinity() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _address() -> str:
    """This host's address on its default route; loopback without one. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket only asks the routing table.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


# --- what the control groups grant ---------------------------------------------------------------


def _cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time per period, the tightest limit up the tree; None without a limit."""
    quotas = []
    for folder, unified in _cgroups(root, "cpu"):
        if unified:
            quota, _, period = _read(folder / "cpu.max").partition(" ")
        else:
            quota = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _memory(root: Path) -> int | None:
    """Bytes this process may use: the machine's memory or the tightest limit up the tree."""
    found = re.search(r"MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"))
    limits = [int(found.group(1)) * 1024] if found else []
    for folder, unified in _cgroups(root, "memory"):
        limit = _read(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        if limit.isdigit():
            limits.append(int(limit))
    return min(limits, default=None)


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's control groups from leaf to root, and whether they are v2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mount = root / "sys/fs/cgroup" / names if names else root / "sys/fs/cgroup"
        # Inside a container the path may be the host's: its ancestors reach the visible root.
        folder = mount / path.lstrip("/")
        yield folder, not names
        while folder != mount:
            folder = folder.parent
            yield folder, not names


@functools.lru_cache(maxsize=8)
def _numa(root: str) -> tuple[tuple[int, ...], ...]:
    nodes = sorted(Path(root, "sys/devices/system/node").glob("node[0-9]*"), key=_number)
    return tuple(_cpu_list(_read(node / "cpulist")) for node in nodes)


def _cpu_list(text: str) -> tuple[int, ...]:
    """``"0-3,8"`` as numbers."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


# --- accelerators, by what the kernel shows ------------------------------------------------------


@functools.lru_cache(maxsize=8)
def _hardware(root: str) -> tuple[dict[str, object], dict[str, object]]:
    return _tpu(Path(root)), _gpus(Path(root))


def _tpu(root: Path) -> dict[str, object]:
    functions = [f for f in _pci(root) if _hex(f / "vendor") == PCI_VENDOR]
    ids = {(_hex(f / "device"), _hex(f / "subsystem_device")) for f in functions}
    for device, subsystem in sorted(ids):
        generation = generation_of_pci(device, subsystem)
        if generation is None:
            continue
        count = sum(_hex(f / "device") == device for f in functions)
        chips = max(count // generation.functions_per_chip, 1)
        devices = chips * generation.devices_per_chip
        return {"generation": generation.name, "chips": chips, "devices": devices}
    return {}


def _gpus(root: Path) -> dict[str, object]:
    nvidia = [n for n in Path(root, "dev").glob("nvidia[0-9]*") if n.name[6:].isdigit()]
    if nvidia:
        return {"vendor": "nvidia", "count": len(nvidia)}
    nodes = Path(root, "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    amd = [node for node in nodes if _read(node) not in ("", "0")]
    if amd:
        return {"vendor": "amd", "count": len(amd)}
    return {}


def _pci(root: Path) -> list[Path]:
    return sorted(Path(root, "sys/bus/pci/devices").glob("*"))


# --- installed packages --------------------------------------------------------------------------


def _installed(path: tuple[str, ...]) -> dict[str, str | None]:
    """Versions by package; looked up again when a folder on the path has changed (pip install)."""
    return dict(_versions(path, tuple(_modified(entry) for entry in path)))


@functools.lru_cache(maxsize=4)
def _versions(path: tuple[str, ...], modified: tuple[int, ...]) -> Mapping[str, str | None]:
    return {name: _version(name, distributions) for name, distributions in PACKAGES.items()}


def _version(name: str, distributions: tuple[str, ...]) -> str | None:
    for distribution in distributions:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        return _torch_build(version) if name == "torch" else version
    return None


def _torch_build(version: str) -> str:
    """The version with its build ("+cpu", "+cu128"): a registry's wheel does not name it."""
    spec = importlib.util.find_spec("torch")
    if "+" in version or spec is None or not spec.submodule_search_locations:
        return version
    text = _read(Path(next(iter(spec.submodule_search_locations)), "version.py"))
    for name, label in (("cuda", "cu"), ("hip", "rocm"), ("xpu", "xpu")):
        found = re.search(rf"^{name}\b[^=]*= '([^']+)'", text, re.MULTILINE)
        if found:
            return f"{version}+{label}{found.group(1)}"
    return f"{version}+cpu" if text else version


# --- small readers -------------------------------------------------------------------------------


def _modified(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _hex(path: Path) -> int:
    text = _read(path)
    return int(text, 16) if text else -1


def _number(path: Path) -> int:
    return int(re.sub(r"\D", "", path.name))
