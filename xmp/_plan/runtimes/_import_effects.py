"""The variables that importing a framework writes, and how a plan undoes and repeats that.

The launcher may have imported two frameworks that disagree (JAX switches libtpu's enhanced launch
barrier on, torch_xla off); a replica gets what a fresh process with only its own framework has.
Sources: ``jax/_src/cloud_tpu_init.py`` of jax 0.10.2, ``torch_xla/__init__.py`` of torch_xla 2.9.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xmp._words.types import HostFacts

__all__ = ["NAMES", "after_import", "undone", "without_chips"]

FLAGS = {
    "XLA_FLAGS": ("--xla_cpu_enable_fast_math=false",),
    "LIBTPU_INIT_ARGS": (
        "--xla_tpu_use_enhanced_launch_barrier=true",
        "--xla_tpu_use_enhanced_launch_barrier=false",
        "--xla_latency_hiding_scheduler_rerun=1",
        "--xla_tpu_prefer_async_allgather_to_allreduce=true",
        "--xla_tpu_enable_flash_attention=false",
        "--xla_enable_async_all_gather=true",
        "--xla_enable_async_collective_permute=true",
    ),
}
"""Variables that hold lists of flags, with every flag that an import appends to them."""

VALUES = {
    "TPU_SKIP_MDS_QUERY": ("1",),
    "TF_CPP_MIN_LOG_LEVEL": ("1",),
    "GRPC_VERBOSITY": ("ERROR",),
    "TPU_ML_PLATFORM": ("JAX", "PyTorch/XLA"),
    "TPU_ML_PLATFORM_VERSION": (),
    "ENABLE_RUNTIME_UPTIME_TELEMETRY": ("1",),
    "ALLOW_MULTIPLE_LIBTPU_LOAD": ("1",),
    "TPU_MEGACORE": ("megacore_dense",),
    "PJRT_DYNAMIC_PLUGINS": ("1",),
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": ("60",),
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": ("256",),
}
"""Variables that imports set, and the values they give them (empty: any)."""

NAMES = (*FLAGS, *VALUES)


def after_import(
    facts: HostFacts, values: Mapping[str, str], flags: Mapping[str, Iterable[str]]
) -> dict[str, str]:
    """Return what a fresh process has after the import that sets ``values``, appends ``flags``.

    A value or flag that the user set wins, as it does in the import.
    """
    own = _own(facts)
    given = {name: own.get(name) or value for name, value in values.items()}
    for name, wanted in flags.items():
        words = own.get(name, "").split()
        named = {word.partition("=")[0] for word in words}
        words += [flag for flag in wanted if flag.partition("=")[0] not in named]
        given[name] = " ".join(words)
    return given


def without_chips(facts: HostFacts) -> dict[str, str]:
    """Return what ``import jax`` writes where libtpu is installed and there is no TPU; else {}.

    Replicas of every runtime need it: a template that has imported JAX does not write it again, and
    JAX in the function would have libtpu ask for metadata, which takes 30 s for each attribute
    where another server answers (libtpu 0.0.52).
    """
    if facts.tpu or not facts.frameworks.get("libtpu"):
        return {}
    return after_import(facts, {"TPU_SKIP_MDS_QUERY": "1"}, {})


def undone(facts: HostFacts) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what to set and what to remove to restore the environment from before all imports."""
    own = _own(facts)
    changed = [name for name in NAMES if facts.env.get(name) != own.get(name)]
    back = {name: own[name] for name in changed if own.get(name)}
    return back, tuple(name for name in changed if name not in back)


def _own(facts: HostFacts) -> dict[str, str]:
    """Return the user's own values of all variables that imports touch, without empty ones."""
    own = {name: facts.env[name] for name in NAMES if name in facts.env}
    for name, before in facts.env_at_start.items():
        if name in FLAGS and name in own:
            kept = before.split()
            words = [w for w in own[name].split() if w in kept or w not in FLAGS[name]]
            own[name] = " ".join(words)
        elif name in own and (not VALUES.get(name) or own[name] in VALUES[name]):
            own[name] = before
    return {name: value for name, value in own.items() if value}
