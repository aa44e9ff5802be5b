"""Programs under torch's own launchers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.stage import Outcome, Python

__all__ = ["torchrun", "without_abort"]

ABORT = "terminate called without an active exception"
TRIES = 4


def torchrun(python: Python, *arguments: str, processes: int = 2, **options: Any) -> Outcome:
    """Run ``torchrun --standalone`` ``without_abort``."""
    options.setdefault("timeout", 90)
    command = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    return without_abort(lambda: python(*command, *arguments, **options))


def without_abort(run: Callable[[], Outcome]) -> Outcome:
    """``run()`` until none of its processes aborts after its last line.

    On a busy host 1 in 30 runs of two workers of torch 2.13 has one that dies of SIGABRT while its
    interpreter ends: a thread of gloo, which outlives destroy_process_group(), frees a tensor and
    needs the GIL for it (github.com/pytorch/pytorch/pull/179291). torchrun calls that a failure,
    and starts the workers again where it may.
    """
    for _ in range(TRIES):
        done = run()
        if ABORT not in done.err:
            break
    return done
