"""Chooses the backend of torch's process group, and checks whether an existing group has it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from xmp._words.replica_info import ReplicaInfo

__all__ = ["checked", "on_loopback", "planned", "refuse_other"]

_NONE = "undefined"
"""The name that torch lists among its backends for a group without one."""
_INTERFACE = "GLOO_SOCKET_IFNAME"


def planned(info: ReplicaInfo) -> str:
    """Return the backend of the plan; empty for torch's own choice."""
    settings = info.settings
    backend = settings.get("backend") or settings.get("default_backend") or "auto"
    return "" if backend == "auto" else backend


def checked(dist: Any, backend: str | None) -> str:
    """Return the user's backend as torch writes it; empty for None and "auto".

    Raises:
        ValueError: this torch does not have it.
    """
    if backend is None or backend.lower() == "auto":
        return ""
    for entry in backend.split(","):
        named = entry.rpartition(":")[2].strip()
        if named.lower() == _NONE or not dist.is_backend_available(named):
            known = [name for name in dist.Backend.backend_list if dist.is_backend_available(name)]
            shown = ", ".join(repr(name) for name in known if name not in ("fake", _NONE))
            raise ValueError(
                f"backend is {backend!r}, which this torch does not have. Allowed are {shown}, one "
                'for each kind of device ("cpu:gloo,cuda:nccl"), and "auto" for the runtime\'s own'
            )
    return backend.lower()


def refuse_other(dist: Any, backend: str | None, device: Callable[[], Any]) -> None:
    """Raise ValueError if the default group does not use the user's backend for this device."""
    wanted = checked(dist, backend)
    there = dist.get_backend_config()
    if not wanted or wanted in (there, dist.get_backend()):
        return
    used = set(there.split(","))
    asked = wanted if ":" in wanted else f"{device().type}:{wanted}"
    if used.issuperset(asked.split(",")):
        return
    raise ValueError(
        f"xmp.init_process_group({backend!r}): the process group is there already, with backend "
        f"{dist.get_backend()!r}. Omit the backend, or call "
        "torch.distributed.destroy_process_group() before"
    )


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let gloo listen on loopback, unless the user has named an interface.

    Even in a group of one gloo opens a port, by default at the address of the host's name.
    """
    if os.environ.get(_INTERFACE):
        yield
        return
    os.environ[_INTERFACE] = "lo" if sys.platform == "linux" else "lo0"
    try:
        yield
    finally:
        del os.environ[_INTERFACE]
