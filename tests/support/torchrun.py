"""Programs under the real torchrun."""

from __future__ import annotations

from typing import Any

from tests.support.stage import Outcome, Python

__all__ = ["torchrun"]

ABORT = "terminate called without an active exception"
TRIES = 4


def torchrun(python: Python, *arguments: str, processes: int = 2, **options: Any) -> Outcome:
    """Run ``torchrun --standalone`` until no worker of it aborts after its last line.

    On a busy host 1 in 30 runs of two workers of torch 2.13 has one that dies of SIGABRT while its
    interpreter ends: a thread of gloo, which outlives destroy_process_group(), frees a tensor and
    needs the GIL for it (github.com/pytorch/pytorch/pull/179291). torchrun calls that a failure,
    and starts the workers again where it may.
    """
    options.setdefault("timeout", 90)
    command = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    for _ in range(TRIES):
        done = python(*command, *arguments, **options)
        if ABORT not in done.err:
            break
    return done
