"""The options of XmpStrategy: xmp's, and those of DDPStrategy and DistributedDataParallel."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from xmp._calls.options import SPAWN
from xmp._calls.spawn import spawn

__all__ = ["shows_options", "split"]

_LIGHTNINGS = ("nprocs", "daemon", "runtime", "devices", "backend", "seed", "timeout")
"""What Lightning itself says, or has another name for."""
_OF_SPAWN = tuple(each.name for each in SPAWN if each.name not in _LIGHTNINGS)
_NOT_OPTIONS = ("self", "args", "options", "kwargs", "module", "device_ids")
_BY_NAME = inspect.Parameter.KEYWORD_ONLY
_RENAMED = {"launch_timeout": "timeout"}
"""Options that ``xmp.spawn`` names otherwise: ``timeout`` of DDPStrategy is the process group's."""


def shows_options(strategy: type) -> None:
    """Have ``help()`` and editors show the options of a strategy of xmp's, each by its name."""
    ours = inspect.signature(spawn).parameters
    own = {n: ours[_RENAMED.get(n, n)] for n in (*_OF_SPAWN, *_RENAMED)}
    shown = {each.name: each for each in _parameters(strategy)}
    shown |= {n: each.replace(name=n, kind=_BY_NAME) for n, each in own.items()}
    strategy.__signature__ = inspect.Signature([*shown.values()])  # type: ignore[attr-defined]


def split(strategy: type, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of ``xmp.spawn``, under its names, and those of Lightning's strategy.

    Raise TypeError for an option that neither has.
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
    """Return the parameters of Lightning's strategy, and of DDP, to which it passes the others."""
    return {each.name for each in _parameters(strategy)}


def _parameters(strategy: type) -> Iterator[inspect.Parameter]:
    from torch.nn.parallel import DistributedDataParallel

    owners = (*strategy.__mro__, DistributedDataParallel)
    makers = [vars(each)["__init__"] for each in owners if "__init__" in vars(each)]
    for maker in makers:
        for each in inspect.signature(maker).parameters.values():
            if each.name not in _NOT_OPTIONS:
                yield each.replace(kind=_BY_NAME)
