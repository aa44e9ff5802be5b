"""Guesses of what an unknown name of a runtime was meant to be."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

__all__ = ["meant"]

_GPU = '"cuda" (NVIDIA), "rocm" (AMD) or "xpu" (Intel) with torch, "jax" with JAX'
_TPU = '"pjrt" with torch_xla, "jax" with JAX, "torch_tpu" with torch_tpu'
_TORCH = '"cuda" on NVIDIA GPUs, "cpu" on CPUs; without runtime= xmp chooses'
_OTHER_NAMES = {
    **dict.fromkeys(("gpu", "gpus"), _GPU),
    **dict.fromkeys(("tpu", "tpus", "libtpu"), _TPU),
    **dict.fromkeys(("torch", "pytorch", "torch.distributed", "ddp"), _TORCH),
    **dict.fromkeys(("xla", "torch_xla"), '"pjrt" (torch_xla 2.1 or later)'),
    **dict.fromkeys(("nvidia", "cu"), '"cuda" with torch, "jax" with JAX'),
    **dict.fromkeys(("amd", "hip"), '"rocm" with torch, "jax" with JAX'),
    "intel": '"xpu" with torch',
    **dict.fromkeys(("nccl", "gloo", "mpi", "ucc"), 'backend="{name}", which is another argument'),
    **dict.fromkeys(("mps", "metal"), '"cpu": xmp has no runtime for Apple\'s GPUs'),
    **dict.fromkeys(("host", "native", "none", "multiprocessing"), '"cpu"'),
    **dict.fromkeys(("paddlepaddle", "fleet"), '"paddle"'),
    **dict.fromkeys(("flax", "jaxlib"), '"jax"'),
    **dict.fromkeys(("trn", "trainium", "inferentia"), '"neuron"'),
}


def meant(name: str, names: Sequence[str], likely: Sequence[str]) -> str:
    """Return what to write instead of ``name``; "" where there is no guess.

    For a misspelt word only the ``likely`` names are considered.
    """
    plain = name.strip().lower().replace("-", "_").partition(":")[0]
    if plain in names:
        return f'"{plain}"'
    if plain in _OTHER_NAMES:
        return _OTHER_NAMES[plain].format(name=plain)
    return "".join(f'"{near}"' for near in get_close_matches(plain, likely, 1))
