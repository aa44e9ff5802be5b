"""Which options of XmpStrategy are xmp's, which are DDPStrategy's and DistributedDataParallel's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

__all__ = ["split"]

_OF_SPAWN = (
    *("start_method", "env", "threads", "bind", "start_timeout", "hang_timeout", "grace"),
    *("max_restarts", "log_dir", "prefix", "show", "progress", "events"),
)
_RENAMED = {"launch_timeout": "timeout"}
"""``timeout`` of DDPStrategy is the process group's."""


def split(strategy: type, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of ``xmp.spawn``, under its names, and those of Lightning's own strategy.

    Raises TypeError for an option that neither has.
    """
    own = {name: options[name] for name in _OF_SPAWN if name in options}
    own |= {name: options[given] for given, name in _RENAMED.items() if given in options}
    theirs = {n: v for n, v in options.items() if n not in _OF_SPAWN and n not in _RENAMED}
    _check(strategy, theirs)
    return own, theirs


def _check(strategy: type, theirs: Mapping[str, Any]) -> None:
    known = _of_lightning(strategy)
    for name in theirs:
        if name not in known:
            near = get_close_matches(name, [*known, *_OF_SPAWN, *_RENAMED], 1)
            meant = f". Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"XmpStrategy() got an unexpected keyword argument {name!r}{meant}")
    limit = theirs.get("timeout")
    if limit is not None and not isinstance(limit, timedelta):
        raise TypeError(
            f"timeout={limit!r}: as in DDPStrategy this is the time limit of the process group, a "
            "datetime.timedelta. Give the seconds that the whole launch may take as launch_timeout="
        )


def _of_lightning(strategy: type) -> set[str]:
    """The parameters of Lightning's strategy, and of DDP, to which it passes the others."""
    from torch.nn.parallel import DistributedDataParallel

    owners = (DistributedDataParallel, *strategy.__mro__)
    makers = [vars(each)["__init__"] for each in owners if "__init__" in vars(each)]
    names = {name for maker in makers for name in inspect.signature(maker).parameters}
    return names - {"self", "args", "options", "kwargs", "module", "device_ids"}
