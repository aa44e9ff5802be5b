"""``backend=``: Paddle's words for what connects the replicas, as the chosen runtime has them."""

from __future__ import annotations

from difflib import get_close_matches

from xmp._plan.runtimes import Runtime
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

__all__ = ["DISTRI_BACKEND", "mapped"]

DISTRI_BACKEND = "PADDLE_DISTRI_BACKEND"
BACKENDS = ("auto", "gloo", "nccl", "xccl", "bkcl", "heter", "flagcx")
"""The backends of Paddle 3.3.1 (``check_backend`` of distributed/fleet/launch_utils.py)."""
_OF_TORCH = ("gloo", "nccl", "xccl")
_WHAT = {
    "xccl": "connects custom devices of Paddle's plugins",
    "bkcl": "connects Kunlun XPUs",
    "heter": "connects hosts with different devices",
    "flagcx": "is a library that Paddle can be built with",
}


def mapped(
    backend: str | None, runtime: Runtime, facts: HostFacts
) -> tuple[str | None, dict[str, str]]:
    """Return the backend of torch's process group, and the variables of the replicas.

    Under Paddle the word becomes PADDLE_DISTRI_BACKEND, where ``init_parallel_env`` looks for it;
    ``gloo`` then means training on the CPU, as in Paddle's spawn. Raise PlanError for a backend
    that is not known, or that the runtime does not have here.
    """
    if backend is None or backend == "auto":
        return None, {}
    if backend not in BACKENDS:
        near = get_close_matches(backend.lower(), BACKENDS, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise PlanError(f"backend={backend!r} is not known.{meant} Allowed: {', '.join(BACKENDS)}")
    has_gpu = bool(runtime.visible(facts))
    of_paddle = runtime.name == "paddle"
    allowed = ("gloo", "nccl")[: 1 + has_gpu] if of_paddle else runtime.backends
    if backend in allowed and (of_paddle or backend in _OF_TORCH):
        return (None, {DISTRI_BACKEND: backend}) if of_paddle else (backend, {})
    fitting = ["auto", *(each for each in _OF_TORCH if each in allowed)]
    raise PlanError(
        f"backend={backend!r}{_why(backend, runtime)}. Allowed on this host with runtime "
        f"{runtime.name!r}: {', '.join(fitting)}"
    )


def _why(backend: str, runtime: Runtime) -> str:
    if runtime.name != "paddle" and backend in _OF_TORCH:
        return f" does not work with runtime {runtime.name!r}"
    if backend not in _WHAT:
        return ": Paddle sees no NVIDIA GPU here"
    without = "xmp runs Paddle on CPUs and NVIDIA GPUs"
    reason = without if runtime.name == "paddle" else "torch has nothing equal"
    return f" {_WHAT[backend]}, and {reason}"
