"""Environment variables: when they are read, which identify a replica, which a report shows.

When a variable is read was found by changing it between import and first use, with torch 2.13, JAX
0.10.2, torch_xla 2.9.0, torch_tpu 0.2.0 and libtpu 0.0.51. The files that read them:

at import     torch/__init__.py, torch/_inductor/config.py, torch/_dynamo/config.py,
              jax/_src/config.py, jax/_src/cloud_tpu_init.py, torch_xla/__init__.py,
              torch_xla/experimental/plugins.py
at first use  jax/_src/distributed.py, torch/distributed/rendezvous.py (env://), torch/cuda,
              libtpu (TPU_*, LIBTPU_INIT_ARGS), XLA (XLA_FLAGS)
"""

from __future__ import annotations

from xmp._plan.clusters.launchers import BY_HAND, ENDPOINTS, INSIDE, JAX, NAMES, TORCHRUN

__all__ = [
    "FIRST_USE", "IDENTITY", "IMPORT_TIME", "LEFT_OVER", "MEETING_PLACES", "QUIET", "READERS",
    "REPORTED",
]  # fmt: skip

IMPORT_TIME = (
    # The interpreter and the dynamic loader.
    *("PYTHON*", "VIRTUAL_ENV", "LD_*", "GLIBC_TUNABLES", "MALLOC_*", "LANG", "LC_*"),
    # Native thread pools choose kind, placement and wait policy when they are loaded.
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "GOTO_NUM_THREADS", "DNNL_*"),
    *("MKLDNN_*", "ONEDNN_*", "NPY_*", "NUMPY_*"),
    # torch and its compilers build their configuration modules while being imported.
    *("TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_LOGS*", "TORCH_TRACE", "TORCH_CUDA_SANITIZER"),
    *("PYTORCH_JIT*", "TORCH_COMPILE*", "TORCHINDUCTOR_*", "TORCHDYNAMO_*", "TRITON_*"),
    # libtorch reads these while the dynamic loader runs its constructors.
    *("KINETO_*", "PYTORCH_API_USAGE_STDERR", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("TORCH_BLAS_PREFER_*", "TORCH_LINALG_PREFER_*", "TORCH_ROCM_FA_PREFER_CK"),
    *("TORCH_CPP_LOG_LEVEL", "TORCH_CUSTOM_TERMINATE", "TORCH_DISTRIBUTED_DEBUG"),
    "TORCH_SHOW_CPP_STACKTRACES",
    # JAX builds jax.config from these, and looks for libtpu.
    *("JAX_*", "TPU_LIBRARY_PATH"),
    # torch_xla chooses a device and registers plugins.
    *("PJRT_SELECT_DEFAULT_DEVICE", "PJRT_DYNAMIC_PLUGINS", "XLA_REGISTER_INSTALLED_PLUGINS"),
    *("TF_*", "GRPC_*"),
    # Other libraries that launchers often have imported.
    *("HF_*", "TRANSFORMERS_*", "MPLBACKEND", "MPLCONFIGDIR", "MATPLOTLIBRC"),
)
"""Read by an import: part of a template's key (names, or prefixes ending in ``*``)."""

READERS = (
    (("JAX_*",), "jax"),
    (("TORCH_*", "TORCHINDUCTOR_*", "TORCHDYNAMO_*", "PYTORCH_*", "KINETO_*"), "torch"),
    (("PJRT_*", "XLA_*"), "torch_xla"),
    (("HF_*",), "huggingface_hub"),
    (("TRANSFORMERS_*", "HF_*"), "transformers"),
    (("MPL*", "MATPLOTLIBRC"), "matplotlib"),
    (("TRITON_*",), "triton"),
)
"""The packages that read some of these; a process that has not imported one has not read them."""

FIRST_USE = (
    "TZ",  # by time.tzset()
    "PYTHONBREAKPOINT",
    # xmp applies these by a call after the fork.
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS"),
    # Read by jax.distributed.initialize (jax/_src/distributed.py).
    *("JAX_COORDINATOR_*", "JAX_LOCAL_DEVICE_IDS", "JAX_PARTITION_INDEX", "JAX_PROCESS_ID"),
    "JAX_NUM_PROCESSES",
    # torch asks each time, and writes it when it is first asked: while Lightning is imported.
    "TORCHINDUCTOR_CACHE_DIR",
    # Written by `import jax` and `import torch_xla`: the plan sets the replica's value.
    *("TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY", "XLA_FLAGS", "LIBTPU_INIT_ARGS"),
    *("ALLOW_MULTIPLE_LIBTPU_LOAD", "ENABLE_RUNTIME_UPTIME_TELEMETRY", "TENSORSTORE_*"),
    *("TPU_ML_PLATFORM*", "TPU_MEGACORE", "TPU_SKIP_MDS_QUERY"),
)
"""Exceptions to ``IMPORT_TIME``. A runtime has more (``by_call``), which its framework applies."""

IDENTITY = (
    *(*TORCHRUN.numbers, *BY_HAND.numbers, BY_HAND.address, BY_HAND.port, *TORCHRUN.drops, INSIDE),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
)
"""A replica's identity: set by the plan, dropped when inherited, refused in ``env=``."""

SECRETS = ("XMP_JOB_SECRET",)
"""Only for the launchers of several hosts: no replica needs them."""

MEETING_PLACES = (
    *(TORCHRUN.address, TORCHRUN.port, JAX.address, "XLA_COORDINATOR_PORT"),
    *("NEURON_RT_ROOT_COMM_ID", "PADDLE_CURRENT_ENDPOINT", ENDPOINTS),
)
"""Where replicas meet: a program that sets one before the launch is told that xmp replaces it."""

LEFT_OVER = ("XRT_*", "TPU_NUM_DEVICES", "GPU_NUM_DEVICES")
"""Variables without a use outside XRT that some images still set (Kaggle's sets XRT_TPU_CONFIG)."""

REPORTED = (
    *IDENTITY,
    *NAMES,
    *LEFT_OVER,
    *("XMP_*", "FAKE_*", "PJRT_*", "XLA_*", "LIBTPU_*", "TPU_*", "CLOUD_TPU_*", "MEGASCALE_*"),
    *("HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS", "JAX_*", "TORCH_*", "PYTORCH_*", "NCCL_*", "GLOO_*"),
    *("CUDA_*", "NVIDIA_VISIBLE_DEVICES", "HIP_*", "ROCR_*", "ZE_*", "NEURON*", "PADDLE_*"),
    *("FLAGS_selected_*", "OMP_*", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_CPP_*"),
    *("GRPC_VERBOSITY", "ALLOW_MULTIPLE_LIBTPU_LOAD", "ENABLE_RUNTIME_UPTIME_TELEMETRY"),
    *("TENSORSTORE_*", "GCE_METADATA_IP", "no_proxy", "NO_PROXY"),
)
"""The variables that a report of a host shows: enough to plan again, and no secrets."""

QUIET = (("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),)
"""With this setting ``torch.cuda.is_available()`` at module level starts no driver."""
