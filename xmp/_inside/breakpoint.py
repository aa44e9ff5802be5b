"""``xmp.breakpoint``: all replicas call it, and one rank stops in the debugger.

The debugger itself is the engine's: in a replica it sets ``sys.breakpointhook``.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from xmp import _inside
from xmp._os import signals

__all__ = ["breakpoint", "does_nothing", "in_this_process"]


def breakpoint(rank: int = 0) -> None:
    """Stop in the debugger on the replica of this rank; the others go on until they wait for it.

    Every replica makes the same call. The debugger has the launcher's terminal (or reads its
    standard input where that is a pipe or a file) until the program continues; meanwhile no other
    process reads it, and ``timeout=``, ``hang_timeout=``, ``grace=`` and ``join(timeout)`` are
    paused. Other time-outs are not: torch's process groups give up after their own (30 minutes for
    gloo, 10 for nccl, unless you pass ``init_process_group(timeout)``), and so do the barriers of
    JAX's coordination service.

    Several replicas at a breakpoint take turns at the terminal. Ctrl-C goes to the debugger;
    quitting it ends the launch as Ctrl-C elsewhere does. With ``join=False`` the replica waits
    until the program joins the launch. A plain ``breakpoint()`` in one replica does the same,
    unless the program sets its own ``sys.breakpointhook`` or PYTHONBREAKPOINT names another
    debugger; these get no terminal. Outside a launch this is the plain ``breakpoint()``.
    A child of a replica stops as the replica would; one with an interpreter of its own, as
    multiprocessing's "spawn" and "forkserver" make, does so by this function alone.

    Args:
        rank: 0 … ``world_size() - 1``.

    Raises:
        TypeError: ``rank`` is not an integer.
        ValueError: ``rank`` is not a rank of this launch.
        RuntimeError: the launcher is a notebook, or has no terminal and nothing to read; or the
            replicas are those of hosts (``launch(…, engine=…)``).
        KeyboardInterrupt: the user has quit the debugger.
    """
    wanted, size = operator.index(rank), _inside.world_size()
    if not 0 <= wanted < size:
        raise ValueError(f"rank is {wanted}; this launch has the ranks 0 to {size - 1}")
    if wanted != _inside.rank():
        return
    hook = sys.breakpointhook
    if "ipykernel" in sys.modules and does_nothing(hook):
        hook = sys.__breakpointhook__
    if hook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
        hook()
        return
    with signals.deferred():
        import pdb  # Python's hook would stop here, one frame too deep

    pdb.Pdb().set_trace(sys._getframe(1))


def does_nothing(hook: Callable[..., Any]) -> bool:
    """Return whether a ``sys.breakpointhook`` is debugpy's and no client of debugpy is attached.

    ipykernel imports debugpy, whose import sets the hook (debugpy/_vendored/force_pydevd.py);
    without a client it returns at once (https://github.com/microsoft/debugpy/wiki/API-Reference).
    """
    if getattr(hook, "__module__", "") != "debugpy._vendored.force_pydevd":
        return False
    connected = getattr(sys.modules.get("debugpy"), "is_client_connected", lambda: False)
    return not connected()


@contextmanager
def in_this_process() -> Iterator[None]:
    """Make ``breakpoint()`` stop in a notebook's kernel while the function runs in it.

    In a script that listens for debugpy's clients, a breakpoint does nothing until one is attached.
    """
    before = sys.breakpointhook
    if not ("ipykernel" in sys.modules and does_nothing(before)):
        yield
        return
    sys.breakpointhook = sys.__breakpointhook__
    try:
        yield
    finally:
        if sys.breakpointhook is sys.__breakpointhook__:
            sys.breakpointhook = before
