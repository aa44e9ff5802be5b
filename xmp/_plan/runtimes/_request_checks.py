"""Checks of a request: each error says what was given, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from xmp._words.errors import PlanError, brief
from xmp._words.types import HostFacts, Request

from ._base import Job, Place, Runtime, matches
from ._known_variables import IDENTITY
from ._replica_variables import LONGEST, is_too_long

__all__ = [
    "check_backend", "check_environment", "check_installed", "check_launcher", "check_names",
    "check_nesting", "check_types", "count", "touched",
]  # fmt: skip

_MOST = 2**16
"""The most replicas or threads: more are a mistake, and would not fit into memory."""


def check_types(request: Request) -> None:
    """Raise TypeError or PlanError for a value of ``nprocs`` or ``threads`` that is not allowed."""
    for name, least in (("nprocs", -1), ("threads", 1)):
        value = getattr(request, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            kind = type(value).__name__
            raise TypeError(f"{name}={brief(value)} is a {kind}. Allowed: an int, or None.")
        if value < least or value == 0:
            raise PlanError(
                f"{name}={value} is too small. Allowed: 1 or more; None for the default.",
                code="XMP-P01",
            )
        if value > _MOST:
            raise PlanError(
                f"{name}={value} is too large. Allowed: {_MOST} at most.", code="XMP-P01"
            )


def check_installed(runtime: Runtime, facts: HostFacts) -> None:
    """Raise PlanError where the runtime's package is missing: every replica would fail."""
    if runtime.package and facts.frameworks.get(runtime.package, "unknown") is None:
        extra = runtime.distribution or runtime.package.replace("_", "-")
        raise PlanError(
            f"runtime {runtime.name!r} needs the package {runtime.package}, which is not "
            f'installed. Use `pip install "{extra}"`, or another runtime.',
            code="XMP-P06",
        )


def count(
    runtime: Runtime, request: Request, places: Sequence[Place], hosts: int
) -> tuple[int, str]:
    """Return the replicas per host and why; raise PlanError unless the number fits every host."""
    counts = {_count_here(runtime, request, place.facts, hosts) for place in places}
    if len(counts) > 1:
        raise PlanError(
            f"the hosts differ: {sorted(n for n, _ in counts)} replicas fit. Pass nprocs with a "
            "number that fits all of them.",
            code="XMP-H03",
        )
    return counts.pop()


def _count_here(
    runtime: Runtime, request: Request, facts: HostFacts, hosts: int
) -> tuple[int, str]:
    nprocs = None if request.nprocs == -1 else request.nprocs
    if request.devices is not None:
        _check_devices(runtime, request, facts)
        if nprocs not in (None, len(request.devices)):
            raise PlanError(
                f"nprocs={nprocs} and devices={list(request.devices)} disagree. "
                f"Omit nprocs, or pass {len(request.devices)}.",
                code="XMP-P03",
            )
        nprocs = len(request.devices)
    fit = runtime.fit(facts, request, hosts)
    if fit.default < 1:
        why = f"runtime {runtime.name!r} has no device here: {fit.reason}. {fit.advice}"
        raise PlanError(why.rstrip(), code="XMP-P06")
    if nprocs is None:
        return fit.default, f"{fit.reason}, nprocs left out"
    if fit.allowed is not None and nprocs not in fit.allowed:
        numbers = ", ".join(str(n) for n in fit.allowed)
        raise PlanError(
            f"nprocs={nprocs} does not fit this host: {fit.reason}. Allowed with runtime "
            f"{runtime.name!r}: {numbers}, or None for {fit.default}. {fit.advice}".rstrip(),
            code="XMP-P03",
        )
    source = "devices" if request.devices is not None else "nprocs"
    return nprocs, f"{source} given; {fit.reason}"


def _check_devices(runtime: Runtime, request: Request, facts: HostFacts) -> None:
    devices = request.devices or ()
    visible = runtime.visible(facts)
    if visible is None:
        raise PlanError(
            f"devices={list(devices)} was given, but runtime {runtime.name!r} has no devices "
            "to choose from on this host. Omit devices and pass nprocs.",
            code="XMP-P03",
        )
    allowed = f"0 to {len(visible) - 1}" if visible else "none"
    if not devices:
        raise PlanError(
            f"devices=[] names no device. Allowed: {allowed}, or None for all.", code="XMP-P03"
        )
    for device in devices:
        if isinstance(device, bool) or not isinstance(device, int):
            raise TypeError(
                f"devices={list(devices)}: {brief(device)} is not an int. Allowed: {allowed}."
            )
        if not 0 <= device < len(visible):
            raise PlanError(
                f"devices={list(devices)}: {device} is out of range. Allowed: {allowed} (positions "
                "in what the host's mask allows).",
                code="XMP-P03",
            )
    if len(set(devices)) < len(devices):
        raise PlanError(
            f"devices={list(devices)} repeats a device. Name each one once.", code="XMP-P03"
        )


def check_names(runtime: Runtime, request: Request) -> None:
    """Raise PlanError where ``env=`` sets a variable that xmp assigns, or one that is too long."""
    pairs = sorted({(name, value) for entry in request.env or () for name, value in entry})
    for name, value in pairs:
        if is_too_long(name, value):
            raise PlanError(
                f"env= gives {name} {len(value):,} characters, but Linux starts no program with a "
                f"variable of more than {LONGEST:,} bytes, name and value together. Pass the value "
                "in args=, or the path of a file.",
                code="XMP-P05",
            )
    for name, _ in pairs:
        if matches(name, (*IDENTITY, *runtime.owned)):
            raise PlanError(
                f"env= sets {name}, but xmp assigns it to each replica.\nOmit it from env=, and "
                "choose replicas and devices with nprocs= and devices=.",
                code="XMP-P05",
            )


def check_environment(runtime: Runtime, job: Job) -> None:
    """Raise PlanError where ``env=`` does not fit the replicas, or ``backend=`` the devices."""
    entries = job.request.env or ()
    if len(entries) not in (0, 1, job.local):
        raise PlanError(
            f"env= has {len(entries)} entries for {job.local} replicas. Give one mapping, or a "
            "function from the local rank to a mapping.",
            code="XMP-P05",
        )
    check_backend(runtime, job.request.backend)
    has = job.places[0].facts.frameworks
    if job.request.backend is not None and runtime.store and has.get("torch", "?") is None:
        raise PlanError(
            f"backend={brief(job.request.backend)} needs torch, which is not installed. "
            "Use `pip install torch`, or leave backend= out.",
            code="XMP-P06",
        )


def check_backend(runtime: Runtime, backend: str | None) -> None:
    """Raise PlanError for a process-group backend that does not fit the runtime's devices."""
    if backend not in (None, "auto", *runtime.backends):
        allowed = ", ".join(("auto", *runtime.backends))
        advice = f"Allowed: {allowed}, or omit it" if runtime.backends else "It has none: omit it"
        raise PlanError(
            f"backend={brief(backend)} does not work with runtime {runtime.name!r}. {advice}.",
            code="XMP-P12",
        )


def check_nesting(facts: HostFacts, device: str) -> None:
    """Raise PlanError for a launch in a replica that needs the kind of device this one holds."""
    held = facts.env.get("XMP_DEVICE", "")
    kind = held.partition(":")[0]
    if ":" in held and device.partition(":")[0] == kind:
        raise PlanError(
            f"this process is a replica that holds {held}: an inner launch cannot give {kind} "
            'devices to its own replicas. Use runtime="cpu" for the inner launch.',
            code="XMP-P10",
        )


# --- a launcher that has itself initialised a device ---------------------------------------------


# The replicas of a launcher that has initialised a device are forked from a template that has
# initialised none, or are fresh interpreters. Only TPU chips are a problem: libtpu holds them until
# the launcher ends.

NAMES = {"jax": "JAX"}
DEVICES = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "the XPU", "tpu": "the TPU", "cpu": "its CPUs"}


def check_launcher(runtime: Runtime, facts: HostFacts) -> tuple[str, ...]:
    """Return the warnings for a launcher that has initialised accelerators and starts replicas.

    Raise PlanError where it holds the chips that the replicas need.
    """
    holders = [entry for entry in facts.initialised if entry.endswith(":tpu")]
    if holders and runtime.on_tpu(facts):
        raise PlanError(
            f"{_who(holders[0])} in this process, which holds the chips until it ends: replicas "
            f"with runtime={runtime.name!r} cannot use them.\nRestart this process (a notebook's "
            "kernel) and use the device in the function only (JAX_PLATFORMS=cpu runs JAX on the "
            'CPU), or pass nprocs=1 or runtime="cpu".',
            code="XMP-P10",
        )
    return tuple(_untouched(entry) for entry in facts.initialised if _device(entry) != "cpu")


def touched(facts: HostFacts) -> tuple[str, ...]:
    """Return one note for each device runtime that the launcher has initialised."""
    return tuple(_untouched(entry) for entry in facts.initialised)


def _untouched(entry: str) -> str:
    what = f"{_who(entry)} in this process, which replicas do not inherit"
    return f'{what} (start_method="fork" is refused)'


def _device(entry: str) -> str:
    return entry.rpartition(":")[2]


def _who(entry: str) -> str:
    """Return the entry in words: ``"JAX has initialised the TPU"``."""
    framework, _, device = entry.partition(":")
    return f"{NAMES.get(framework, framework)} has initialised {DEVICES.get(device, device)}"
