"""``Trainer(sync_batchnorm=True)`` on the CPU, where DDP refuses torch's SyncBatchNorm."""

from __future__ import annotations

from typing import Any

__all__ = ["SyncOnCpu", "for_cpu"]


def for_cpu(layer_sync: Any) -> Any:
    """Replace Lightning's own TorchSyncBatchNorm by one for the CPU; return a user's as it is."""
    return SyncOnCpu() if type(layer_sync).__name__ == "TorchSyncBatchNorm" else layer_sync


class SyncOnCpu:
    """The methods of Lightning's LayerSync, with xmp's BatchNorm over all replicas."""

    def __init__(self) -> None:
        self._layers: dict[str, Any] = {}
        """The user's layers by their names: they share parameters and buffers with xmp's."""

    def apply(self, model: Any) -> Any:
        """Return the model with BatchNorm layers whose batch is that of all replicas."""
        from torch.nn.modules.batchnorm import _BatchNorm

        from xmp.plugins.data_parallel._batch_norm import synchronized

        self._layers = {
            n: each for n, each in model.named_modules() if isinstance(each, _BatchNorm)
        }
        return synchronized(model, None)

    def revert(self, model: Any) -> Any:
        """Put the user's own layers, with what they have learnt, back into the model; return it."""
        for name, layer in self._layers.items():
            parent, _, last = name.rpartition(".")
            current = model.get_submodule(name)
            layer.training = current.training
            model.get_submodule(parent).add_module(last, layer)
        return model
