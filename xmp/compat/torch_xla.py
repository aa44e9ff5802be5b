"""torch_xla's launchers: ``import xmp.compat.torch_xla as xmp`` in place of xla_multiprocessing.

The names, signatures and defaults are those of torch_xla 2.9 (``spawn``, ``MpModelWrapper`` and
``MpSerialExecutor`` of torch_xla/distributed/xla_multiprocessing.py, ``launch`` of
torch_xla/torch_xla.py). ``create_optimized_replica_groups`` orders the devices of a mesh and
launches nothing: import it from torch_xla.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, overload

from xmp._calls.launch import launch as _launch
from xmp._calls.spawn import Args, public, refuse_while_importing
from xmp._calls.spawn import spawn as _spawn
from xmp._inside.sharing import MpModelWrapper, MpSerialExecutor

if TYPE_CHECKING:
    from xmp._processes import ProcessContext
    from xmp._words.types import StartMethod

__all__ = ["MpModelWrapper", "MpSerialExecutor", "launch", "spawn"]

P = ParamSpec("P")

_RUNTIME = "pjrt"


@overload
def spawn(
    fn: Callable[Concatenate[int, P], Any],
    args: Args = ...,
    nprocs: int | None = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
) -> None: ...


@overload
def spawn(
    fn: Callable[Concatenate[int, P], Any],
    args: Args = ...,
    nprocs: int | None = ...,
    *,
    join: Literal[False],
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
) -> ProcessContext[Any]: ...


@overload
def spawn(
    fn: Callable[Concatenate[int, P], Any],
    args: Args = ...,
    nprocs: int | None = ...,
    join: bool = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
) -> ProcessContext[Any] | None: ...


@public
def spawn(
    fn: Callable[Concatenate[int, P], Any],
    args: Args = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod | None = "spawn",
) -> ProcessContext[Any] | None:
    """Run ``fn(index, *args)`` once for each XLA device of this host; ``index`` is the global rank.

    Args:
        fn: the function; its first argument is the global rank.
        args: a tuple or list of further arguments.
        nprocs: as in torch_xla, None for all devices, or 1 to run ``fn`` in this process; xmp also
            takes every other number that fits this host.
        join: wait for the end of all replicas; torch_xla ignores ``join=False``.
        daemon: with ``join=False``, end the replicas when this process ends instead of waiting.
        start_method: "fork" works in a notebook too, where xmp makes the replicas without a fork
            of the kernel.

    Returns:
        None after all replicas have ended. With ``join=False`` the ``ProcessContext`` of the
        running replicas, which keeps the contract of torch's.

    Raises:
        ValueError: ``nprocs`` does not fit this host (an ``xmp.PlanError``, which lists what does).
        XmpError: otherwise as ``xmp.spawn``.
    """
    method = None if nprocs == 1 and join else start_method  # `fn` runs here: nothing is started
    result: Any = _spawn(fn, args, nprocs, join, daemon, method, runtime=_RUNTIME)
    return None if join else result


@public
def launch(
    fn: Callable[Concatenate[int, P], Any],
    args: Args = (),
    start_method: StartMethod | None = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Run ``fn(index, *args)`` once for each XLA device of this host, or here under torchrun.

    Under torchrun ``fn`` runs in this process, and ``index`` is LOCAL_RANK. Elsewhere it is the
    global rank.

    Args:
        fn: the function; its first argument is ``index``.
        args: a tuple or list of further arguments.
        start_method: as in ``spawn``; it has no effect under torchrun.
        debug_single_process: run ``fn`` once, in this process.

    Raises:
        NotImplementedError: XLA_USE_SPMD is set: one process has all devices then.
        XmpError: otherwise as ``spawn``.
    """
    refuse_while_importing()
    _refuse_spmd()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torch.distributed.is_torchelastic_launched()
        here: Callable[..., Any] = fn
        here(int(os.environ["LOCAL_RANK"]), *args)
    elif debug_single_process:
        _launch(fn, args, 1, runtime=_RUNTIME)
    else:
        _launch(fn, args, runtime=_RUNTIME, start_method=start_method)


def _refuse_spmd() -> None:
    from xmp._plan.runtimes._base import is_spmd
    from xmp._words.types import HostFacts

    if is_spmd(HostFacts(env=dict(os.environ))):
        raise NotImplementedError(
            "launch starts a process for each device, but XLA_USE_SPMD gives one process all "
            "devices: call the function itself, or unset XLA_USE_SPMD"
        )
