"""``xmp.breakpoint``: one rank of all that call it stops in the debugger.

What a debugger in a replica needs is the engine's to give: it sets ``sys.breakpointhook``.
"""

from __future__ import annotations

import operator
import os
import sys

from xmp import _inside

__all__ = ["breakpoint"]


def breakpoint(rank: int = 0) -> None:
    """Stop in the debugger on the replica of this rank; the others go on until they wait for it.

    Every replica makes the same call. The debugger has the launcher's terminal (or reads its
    standard input where that is a pipe or a file) until the program continues; meanwhile nobody
    else reads it. ``timeout=``, ``hang_timeout=`` and ``grace=`` stand still as long, and so does
    ``join(timeout)``. What others count does not: torch's process groups give up after their own
    time-out (30 minutes for gloo, 10 for nccl, unless ``init_process_group(timeout)`` says
    otherwise), and so do the barriers of JAX's coordination service.

    Of several replicas at a breakpoint one after the other has the terminal. Ctrl-C goes to the
    debugger; quitting it ends the launch as Ctrl-C elsewhere does. With ``join=False`` the
    replica waits until somebody joins the launch. A plain ``breakpoint()`` in one replica is the
    same, unless the program has a ``sys.breakpointhook`` of its own or PYTHONBREAKPOINT names
    another debugger; these get no terminal. Outside a launch this is the plain ``breakpoint()``.

    Args:
        rank: 0 … ``world_size() - 1``.

    Raises:
        TypeError: ``rank`` is not an integer.
        ValueError: ``rank`` is not a rank of this launch.
        RuntimeError: the launcher is a notebook, or has no terminal and nothing to read.
        KeyboardInterrupt: the user has quit the debugger.
    """
    wanted, size = operator.index(rank), _inside.world_size()
    if not 0 <= wanted < size:
        raise ValueError(f"rank is {wanted}; this launch has the ranks 0 to {size - 1}")
    if wanted != _inside.rank():
        return
    if sys.breakpointhook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook()
        return
    import pdb  # Python's hook would stop here, one frame too deep

    pdb.Pdb().set_trace(sys._getframe(1))
