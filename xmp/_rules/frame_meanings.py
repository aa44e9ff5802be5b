"""What a frame of a library means about its rank, where no record says it.

Looked up in torch 2.9 to 2.13 and JAX 0.6 to 0.12. A frame of C code is not in a Python stack: a
work's ``wait()``, ``tensor.item()`` and a jitted function look like the user's own line.
"""

from __future__ import annotations

from collections.abc import Sequence

from xmp._words.record import Frame

__all__ = ["COLLECTIVE", "DEVICE", "MEETING", "MESSAGE", "meaning"]

COLLECTIVE = "collective"
MEETING = "meeting"
"""The start of a framework: all ranks must come, as to a collective."""
MESSAGE = "message"
"""A message between two ranks: others need not come."""
DEVICE = "device"
"""The rank waits for its device, which may wait for other ranks, or just compute."""

_C10D = "torch/distributed/distributed_c10d.py"
_MULTIHOST = "jax/experimental/multihost_utils.py"
_MEANINGS = {
    COLLECTIVE: {
        _C10D: (
            "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce "
            "all_reduce_coalesced all_to_all all_to_all_single barrier broadcast "
            "broadcast_object_list gather gather_object monitored_barrier reduce reduce_scatter "
            "reduce_scatter_tensor scatter scatter_object_list"
        ),
        "torch/nn/parallel/distributed.py": "join _sync_buffers _sync_module_states",
        _MULTIHOST: (
            "assert_equal broadcast_one_to_all process_allgather reached_preemption_sync_point "
            "sync_global_devices"
        ),
    },
    MEETING: {
        _C10D: "destroy_process_group init_process_group new_group new_subgroups",
        "torch/distributed/utils.py": ("_sync_module_states _verify_param_shape_across_processes"),
        "jax/_src/distributed.py": "initialize shutdown",
        "jax/_src/xla_bridge.py": "backends get_backend",
    },
    MESSAGE: {_C10D: "batch_isend_irecv irecv isend recv recv_object_list send send_object_list"},
    DEVICE: {
        "torch/_tensor.py": "backward",
        "torch/autograd/graph.py": "_engine_run_backward",
        "torch/cuda/__init__.py": "synchronize",
        "torch/cuda/streams.py": "synchronize wait",
        "jax/_src/api.py": "block_until_ready device_get effects_barrier",
        "jax/_src/array.py": "__array__ _value block_until_ready item tolist",
    },
}
_KINDS = {
    (file, function): kind
    for kind, files in _MEANINGS.items()
    for file, functions in files.items()
    for function in functions.split()
}
_FILES = {file for file, _ in _KINDS}


def meaning(frames: Sequence[Frame]) -> tuple[str, str]:
    """Return (kind, function) of the outermost frame that has a meaning; two empty words if none.

    ``frames``: innermost first, from the one that the user's code has called.
    """
    for frame in reversed(frames):
        for file in _FILES:
            if frame.file.endswith(file):
                kind = _KINDS.get((file, frame.function))
                if kind is not None:
                    return kind, frame.function
    return "", ""
