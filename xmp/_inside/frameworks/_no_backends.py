"""Refuses a process group's backend where the runtime itself connects the replicas."""

from __future__ import annotations

__all__ = ["refuse_backend"]


def refuse_backend(backend: str | None, runtime: str) -> None:
    """Raise ValueError for a named backend; None and "auto" are what the runtime does anyway."""
    if backend not in (None, "auto"):
        raise ValueError(
            f"xmp.init_process_group({backend!r}): runtime {runtime!r} connects the replicas "
            "itself, without a process group of torch's. Omit the backend, or launch with "
            'runtime="cpu" or "cuda"'
        )
