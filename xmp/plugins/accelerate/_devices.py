"""The devices on which accelerate would train, and what xmp gives for them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp._words.errors import PlanError

if TYPE_CHECKING:
    from xmp._plan.runtimes import Runtime
    from xmp._words.types import HostFacts

__all__ = [
    "FORK_LAUNCHED",
    "ON_CPU",
    "chosen",
    "here",
    "is_xla",
    "of_colab",
    "refuse_state",
    "variables",
]

ON_CPU = {"ACCELERATE_USE_CPU": "yes"}
FORK_LAUNCHED = {"FORK_LAUNCHED": "1"}
"""``end_training`` leaves the process group to the launcher (accelerate 1.15, state.py)."""
_WITHOUT_P2P = {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
_OTHER_FAMILIES = ("jax", "paddle", "torch_tpu")
"""accelerate does not use these (1.15), so a notebook that has loaded one decides nothing."""
_OTHERS = {
    "torch_mlu": "mlu",
    "torch_sdaa": "sdaa",
    "torch_musa": "musa",
    "torch_npu": "npu",
    "habana_frameworks": "hpu",
}
"""Packages whose devices accelerate takes first (``get_current_device_type``, 1.15), by kind.

xmp has no runtime for them.
"""


def chosen(count: int | None) -> Runtime:
    """Return the runtime of a launch of ``count`` replicas.

    Raise PlanError for devices that xmp cannot give, and for ``count=None`` except on a TPU.
    """
    from xmp._calls.host import host_facts

    facts = host_facts()
    runtime = _runtime(facts)
    if count is None and not runtime.on_tpu(facts):
        raise PlanError(
            "You have to specify the number of devices you would like to use, add "
            f"`num_processes=...` to your call. {_numbers(runtime, facts)}",
            code="XMP-P03",
        )
    return runtime


def _runtime(facts: HostFacts) -> Runtime:
    from xmp._plan import runtimes
    from xmp._plan.runtime_choice import choose
    from xmp._words.types import Request

    if _flag(facts.env.get("ACCELERATE_USE_CPU", "")):
        return runtimes.get("cpu")
    _refuse_other_devices()
    loaded = tuple(name for name in facts.loaded if name not in _OTHER_FAMILIES)
    frameworks = {**facts.frameworks, **dict.fromkeys(_OTHER_FAMILIES)}
    as_torchs = replace(facts, loaded=(*loaded, "torch"), frameworks=frameworks)
    runtime, why, _ = choose(Request(), as_torchs)
    if runtime.framework.rpartition(".")[2] not in ("torch_dist", "torch_xla", "xrt"):
        raise PlanError(
            f"{why}: accelerate cannot train on runtime {runtime.name!r}. Allowed for XMP_RUNTIME: "
            "cpu, cuda, rocm, xpu, neuron, pjrt, xrt; or leave it out",
            code="XMP-P06",
        )
    return runtime


def _numbers(runtime: Runtime, facts: HostFacts) -> str:
    from xmp._words.types import Request

    fit = runtime.fit(facts, Request(), 1)
    if fit.allowed is None:
        return f"There is no device: any number of processes on the CPU ({fit.reason})"
    return f"Allowed: {', '.join(map(str, fit.allowed))} ({fit.reason})"


def _flag(text: str) -> bool:
    """Read a flag as accelerate does in the environment (utils/environment.py, ``str_to_bool``)."""
    return text.lower() in ("y", "yes", "t", "true", "on", "1")


def _refuse_other_devices() -> None:
    """Raise PlanError where the function would run on the CPU instead of the device it expects."""
    found = {kind for package, kind in _OTHERS.items() if importlib.util.find_spec(package)}
    kind = _device_type() if found else ""
    if kind in found or _mps_is_there():
        name = kind if kind in found else "mps"
        raise PlanError(
            f"num_processes: the devices of this host are {name.upper()}, for which xmp has no "
            "runtime. Give num_processes=1 to train on one of them in this process, set "
            "ACCELERATE_USE_CPU=yes to train on the CPU, or use accelerate's own launcher",
            code="XMP-P06",
        )


def _device_type() -> str:
    from accelerate.utils import get_current_device_type

    return str(get_current_device_type()[0])


def _torch() -> Any:
    import torch

    return torch


def _mps_is_there() -> bool:
    """Return whether torch has MPS; elsewhere than on a Mac torch is not imported to ask it."""
    return (sys.platform == "darwin" or "torch" in sys.modules) and bool(
        _torch().backends.mps.is_available()
    )


def is_xla(runtime: Runtime) -> bool:
    """Return whether torch_xla gives the replicas their world, and not torch's variables."""
    return runtime.name in ("pjrt", "xrt")


def variables(runtime: Runtime) -> Mapping[str, str]:
    """Return the variables that accelerate needs in the replicas of this runtime."""
    if is_xla(runtime):
        return FORK_LAUNCHED
    if runtime.name == "cpu":
        return ON_CPU
    return _WITHOUT_P2P if runtime.name == "cuda" and not _has_p2p() else {}


def _has_p2p() -> bool:
    """Return whether the GPUs can reach each other.

    Without ``_WITHOUT_P2P`` PartialState refuses some that cannot (accelerate 1.15, state.py).
    """
    from accelerate.utils import check_cuda_p2p_ib_support

    return bool(check_cuda_p2p_ib_support())


def refuse_state() -> None:
    """Raise PlanError where this process has made an Accelerator, as accelerate does.

    A ``PartialState`` of this process is no harm: replicas do not inherit it.
    """
    module = sys.modules.get("accelerate.state")
    if module is not None and module.AcceleratorState._shared_state:
        raise PlanError(
            "To launch a multi-device training from your notebook, the `Accelerator` should only "
            "be initialized inside your training function, and this process has initialized one. "
            "Restart your notebook, and make sure that no cell initializes an `Accelerator`.",
            code="XMP-P10",
        )


def of_colab(count: int | None) -> str:
    """Return what a function in this process trains on in Colab, which has one GPU or none.

    The text is empty elsewhere, as in Kaggle's kernels, which may have two GPUs, and on Colab's
    TPUs, where xmp launches.
    """
    env, ipython = os.environ, sys.modules.get("IPython")
    if ipython is None or any(name.startswith("KAGGLE") for name in env):
        return ""
    if "google.colab" not in str(ipython.get_ipython()):
        return ""
    if env.get("TPU_NAME") is not None or env.get("PJRT_DEVICE") == "TPU":
        return ""
    from xmp._calls.host import host_facts

    facts = host_facts()
    gpus = facts.gpus.get("count", 0)
    if gpus >= 2 or facts.tpu:
        return ""
    where = f"one {'GPU' if gpus else 'CPU'}"
    return where if count is None else f"{where}, as always in Colab, and not {count}"


def here() -> tuple[str, Mapping[str, str]]:
    """Return what this process trains on, in words, and the variables for it."""
    torch = _torch()
    if torch.backends.mps.is_available():
        return "MPS", {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    for name in ("cuda", "xpu"):
        if getattr(torch, name).is_available():
            return f"one {'GPU' if name == 'cuda' else 'XPU'}", {}
    return "CPU", {}
