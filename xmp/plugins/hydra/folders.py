"""Hydra's output and working folders, one for each rank: all ranks of a script would write to one.

Facts are those of Hydra 1.3: each process composes its own configuration, writes it and a log into
``hydra.run.dir`` (``hydra.sweep.dir`` of a multirun), and changes to that folder if
``hydra.job.chdir`` says so.
"""

from __future__ import annotations

import functools
from datetime import datetime
from types import ModuleType
from typing import Any

from xmp._os.imports import on_import

__all__ = ["keep_apart"]

_LOADER = "hydra._internal.config_loader_impl"


def keep_apart(rank: int, started: float) -> None:
    """Make Hydra write into ``rank{rank}`` within the folder that its configuration names.

    ``started`` (seconds since 1970) is what ``${now:...}`` means on all ranks: by their own clocks
    they might name different folders.
    """
    on_import(_LOADER, functools.partial(_patch, rank=rank, now=datetime.fromtimestamp(started)))


def _patch(module: ModuleType, rank: int, now: datetime) -> None:
    # The one place that both a run and each job of a multirun pass, before a folder is made.
    loader: Any = vars(module)["ConfigLoaderImpl"]
    load = loader.load_configuration

    @functools.wraps(load)
    def load_for_rank(*args: Any, **kwargs: Any) -> Any:
        from omegaconf import OmegaConf

        OmegaConf.register_new_resolver("now", now.strftime, use_cache=True, replace=True)
        config = load(*args, **kwargs)
        for name in ("run", "sweep"):
            _move(config.hydra[name], f"rank{rank}")
        return config

    loader.load_configuration = load_for_rank


def _move(place: Any, folder: str) -> None:
    """Append the folder to ``place.dir``, whose interpolations stay as they are."""
    from omegaconf import OmegaConf, open_dict, read_write

    named = OmegaConf.to_container(place, resolve=False)["dir"]
    if isinstance(named, str):
        with read_write(place), open_dict(place):
            place.dir = f"{named}/{folder}"
