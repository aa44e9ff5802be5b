"""Which variables are read when: the table behind a template's key and behind what is dropped.

Evidence for every row is in the notes on environment contracts (trap 6 and section 5).
"""

from __future__ import annotations

__all__ = ["FIRST_USE", "IDENTITY", "IMPORT_TIME", "LEFT_OVER", "OUTER", "QUIET", "REPORTED"]

IMPORT_TIME = (
    # The interpreter and the dynamic loader.
    "PYTHON*",
    "VIRTUAL_ENV",
    "LD_*",
    "GLIBC_TUNABLES",
    "MALLOC_*",
    "LANG",
    "LC_*",
    "TZ",
    # Native pools choose kind, placement and wait policy when they are loaded.
    "OMP_*",
    "GOMP_*",
    "KMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "BLIS_*",
    "NPY_*",
    "NUMPY_*",
    # torch and its compilers build their configuration modules while being imported.
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_LOGS*",
    "TORCH_COMPILE*",
    "TORCHINDUCTOR_*",
    "TORCHDYNAMO_*",
    "TRITON_*",
    # JAX builds jax.config from these and looks for libtpu.
    "JAX_*",
    "TPU_LIBRARY_PATH",
    # torch_xla chooses a device and registers plugins.
    "PJRT_SELECT_DEFAULT_DEVICE",
    "PJRT_DYNAMIC_PLUGINS",
    "XLA_REGISTER_INSTALLED_PLUGINS",
    "TF_*",
    "GRPC_*",
    # The libraries that a launcher most often has loaded besides.
    "HF_*",
    "TRANSFORMERS_*",
    "MPLBACKEND",
)
"""Read by an import: part of a template's key."""

FIRST_USE = (
    # Settings that also have a call: applied after the fork.
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    # Read by jax.distributed.initialize and by the lookup of clusters.
    "JAX_COORDINATOR_*",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_PARTITION_INDEX",
    "JAX_PROCESS_ID",
    "JAX_NUM_PROCESSES",
    # Written by `import jax` and `import torch_xla`: each runtime's plan says what a replica gets.
    "TF_CPP_MIN_LOG_LEVEL",
    "GRPC_VERBOSITY",
)
"""Exceptions to the table above; a runtime has more, whose calls only its framework makes."""

IDENTITY = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "NNODES",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_*",
    "XMP_DEVICE",
)
"""A replica's place: set by the plan, dropped when inherited, refused in ``env=``."""

OUTER = (
    ("torchrun", ("TORCHELASTIC_*",)),
    (
        "Slurm",
        (
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_NODEID",
            "SLURM_NTASKS",
            "SLURM_NPROCS",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_STEP_TASKS_PER_NODE",
            "SLURM_STEP_NODELIST",
        ),
    ),
    ("MPI", ("OMPI_COMM_WORLD_*", "OMPI_MCA_orte_hnp_uri", "PMIX_RANK", "PMI_RANK", "PMI_SIZE")),
)
"""By launcher, what it gave its own process and would mislead ours (JAX and Lightning look)."""

LEFT_OVER = ("XRT_*", "TPU_NUM_DEVICES", "GPU_NUM_DEVICES")
"""Of no use since XRT is gone, but still set by images (Kaggle's has XRT_TPU_CONFIG)."""

REPORTED = (
    *IDENTITY,
    *(pattern for _, patterns in OUTER for pattern in patterns),
    *LEFT_OVER,
    *("XMP_*", "FAKE_*", "PJRT_*", "XLA_*", "LIBTPU_*", "TPU_*", "CLOUD_TPU_*", "MEGASCALE_*"),
    *("HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS", "JAX_*", "TORCH_*", "PYTORCH_*", "NCCL_*", "GLOO_*"),
    *("CUDA_*", "NVIDIA_VISIBLE_DEVICES", "HIP_*", "ROCR_*", "ZE_*", "NEURON*", "PADDLE_*"),
    *("FLAGS_selected_*", "OMP_*", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_CPP_*"),
    *("GRPC_VERBOSITY", "ALLOW_MULTIPLE_LIBTPU_LOAD", "ENABLE_RUNTIME_UPTIME_TELEMETRY"),
    *("TENSORSTORE_*", "GCE_METADATA_IP", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"),
    *("JOB_COMPLETION_INDEX", "no_proxy", "NO_PROXY"),
)
"""What a report of a host shows of its environment: enough to plan again, and no secrets."""

QUIET = (("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),)
"""Lets ``torch.cuda.is_available()`` at module level answer without initialising the driver."""
