"""torch_tpu (0.2) in a replica: the backend is loaded after the fork, one chip is ``tpu:0``.

The library derives libtpu's variables from those of the plan at the first use of a device. xmp uses
none before the function does, unless a process group is planned.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from xmp._words.replica_info import ReplicaInfo

from ._torch_rendezvous import Rendezvous
from .torch_dist import TorchDist, group_is_there, planned_rendezvous, ready, torch_module

__all__ = ["TorchTpu", "attach", "enter"]


def enter(info: ReplicaInfo) -> TorchTpu:
    """Register the ``tpu`` device, and form the process group if one is planned.

    Raises:
        RuntimeError: torch_tpu is not installed or cannot be loaded, or finds no chip for a group.
    """
    return ready(TorchTpu(info, planned_rendezvous(info)), info, _load_backend)


def attach(info: ReplicaInfo) -> TorchTpu:
    return TorchTpu(info, None)


def _load_backend() -> None:
    """Load the backend, as ``import torch`` does by itself, but not in the template.

    There TORCH_DEVICE_BACKEND_AUTOLOAD is off: torch_tpu 0.2 loads libtpu and starts a thread.
    A second load changes nothing.
    """
    torch_module()
    own = importlib.metadata.entry_points(group="torch.backends", name="torch_tpu")
    if not own:
        raise RuntimeError(
            "this needs torch_tpu in the replica, which is not installed; install it "
            '(pip install torch_tpu) or use runtime="cpu"'
        )
    try:
        for entry in own:
            entry.load()()
    except ImportError as error:
        raise RuntimeError(
            f"torch_tpu cannot be loaded ({error}); it needs torch 2.11 to 2.15 and libtpu 0.0.50 "
            "or later"
        ) from error


class TorchTpu(TorchDist):
    """A replica's view of its process group; see ``xmp._words.framework.Framework``."""

    def __init__(self, info: ReplicaInfo, rendezvous: Rendezvous | None) -> None:
        super().__init__(info, rendezvous, group_is_there())
        self.device_type = "tpu"

    def device(self) -> Any:
        """Return ``torch.device("tpu", 0)``: a process sees only its own chip."""
        return torch_module().device("tpu", 0)
