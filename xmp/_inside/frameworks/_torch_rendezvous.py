"""Answers torch's rendezvous at the planned address, with a store on a leased listener.

At any other address torch does as usual. ``TORCHELASTIC_USE_AGENT_STORE`` is no
alternative: it makes every rank a client of any address that the program names, and the keys of a
destroyed group stay in the store, so that the next ``init_process_group`` hangs (torch 2.13).
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

from xmp._os import signals
from xmp._os.imports import on_import
from xmp._os.names import looked_up

__all__ = ["Rendezvous"]

_MODULE = "torch.distributed.rendezvous"
_FUNCTION = "_create_c10d_store"
_FORMING = 5.0
"""Seconds after a rendezvous in which peers may still be connecting to each other through it."""
_HOST_LONGER = 1.0
"""Seconds that the store's host adds to them: the ranks do not look at their clocks at once."""
_SHORTEST, _LONGEST = 0.002, 0.05
"""Seconds between two checks: other replicas may still compute on this core."""


class Rendezvous:
    """Replaces the function that creates torch's store, from ``install`` to ``remove``.

    It acts only in the process that called ``take``: the one that installed it, or a fork of it.
    """

    def __init__(self, address: str, port: int) -> None:
        self._address = address
        self._port = port
        self._descriptor: int | None = None
        self._pid = 0
        self._calls: dict[int, int] = {}
        self._groups = LastGroups()
        self._server: Any = None
        self._client: Any = None
        self._last = 0.0
        self._withdraw: Callable[[], None] = lambda: None
        self._original: Callable[..., Any] | None = None

    def install(self) -> None:
        """Patch torch now, or when it is imported, and before that at no cost."""
        self._withdraw = on_import(_MODULE, self._patch)
        self._groups.install()

    def take(self, descriptor: int | None) -> None:
        """Act in this process; ``descriptor`` is the leased listener, if it hosts the store."""
        self._descriptor, self._pid = descriptor, os.getpid()

    def remove(self) -> None:
        """Restore torch's own function, end the store, close the listener."""
        self._withdraw()
        self._withdraw = lambda: None  # the hook refers to this object
        self._groups.remove()
        if self._original is not None:
            setattr(sys.modules[_MODULE], _FUNCTION, self._original)
            self._original = None
        try:
            self._wait_for_peers()
        except RuntimeError:  # the store's host is gone: there is nothing to wait for
            pass
        self._client = self._server = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _patch(self, module: ModuleType) -> None:
        self._original = original = getattr(module, _FUNCTION)

        def create(hostname: str, port: int, rank: int, world_size: int, *rest: Any) -> Any:
            if not self.is_planned(hostname, port):
                return original(hostname, port, rank, world_size, *rest)
            return self.join(world_size, *rest)

        setattr(module, _FUNCTION, create)

    def is_planned(self, host: str, port: int) -> bool:
        """Return whether this is the planned address, in this process.

        Never in a child that the replica forks, which does not own the listener.
        """
        if port != self._port or os.getpid() != self._pid:
            return False
        return host == self._address or bool(_addresses(host) & _addresses(self._address))

    def join(self, world_size: int, timeout: timedelta, use_libuv: bool = True) -> Any:
        """Join the store, under a prefix that counts the rounds of this size: no key is reused."""
        from torch.distributed import PrefixStore, TCPStore

        if self._descriptor is not None:
            # The store owns the descriptor from here on and closes it.
            self._server = TCPStore(
                self._address,
                self._port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=self._descriptor,
                use_libuv=use_libuv,
            )
            self._descriptor = None
        first = self._client is None
        self._client = TCPStore(
            self._address,
            self._port,
            is_master=False,
            wait_for_workers=False,
            timeout=timeout,
            use_libuv=use_libuv,
        )
        if first:
            self._client.add("joined", 1)
        self._last = time.monotonic()
        self._calls[world_size] = count = self._calls.get(world_size, 0) + 1
        return PrefixStore(f"init{count}of{world_size}", self._client)

    def formed(self) -> None:
        """Note that the group is formed: if a rank came late, long after this one's rendezvous."""
        self._last = time.monotonic()

    def _wait_for_peers(self) -> None:
        """Wait until the ranks that may still be connecting are about to leave as well.

        Gloo's ranks find each other through the store and connect pair by pair; the first rank may
        be done, and its function too, before the last pair has connected. If it left, that pair
        would fail. The host of the store leaves last.
        """
        if self._client is None:
            return
        end = self._last + _FORMING + (0.0 if self._server is None else _HOST_LONGER)
        if time.monotonic() > end:
            if self._server is not None:  # others may have joined later, and wait
                self._outstay(time.monotonic() + 2 * _FORMING)
            return
        joined = self._client.add("joined", 0)
        self._client.set(f"left/{self._client.add('left', 1)}", "")
        self._wait_for(f"left/{joined}", end)
        if self._server is None:
            self._client.set(f"gone/{self._client.add('gone', 1)}", "")
        elif joined > 1:
            self._wait_for(f"gone/{joined - 1}", end)
            self._outstay(end + _FORMING, own=1)

    def _outstay(self, end: float, own: int = 0) -> None:
        """Wait until those that wait here have gone, who may have joined later than the host.

        ``own`` of those that have said so (``gone``) are this process. The client of a store that
        closes writes a C++ trace to stderr, even where the error is caught (torch 2.13).
        """
        while self._client.add("left", 0) > self._client.add("gone", 0) + own:
            if time.monotonic() > end:
                return
            time.sleep(_LONGEST)

    def _wait_for(self, key: str, end: float) -> None:
        """Wait for a key by polling: the store's own wait() writes to stderr when it times out."""
        pause = _SHORTEST
        while not self._client.check([key]) and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)


def _addresses(host: str) -> set[str]:
    """Return what ``host`` resolves to; the whole loopback network counts as one address."""
    with signals.deferred():  # an error that a handler raises is no unknown host
        try:
            found = {str(entry[4][0]) for entry in looked_up(host)}
        except OSError as error:
            if signals.from_handler(error):
                raise
            return {host}
    return {"127.0.0.1" if name.startswith("127.") or name == "::1" else name for name in found}


# --- the end of a process group ------------------------------------------------------------------


_MODULES = ("torch.distributed", "torch.distributed.distributed_c10d")
_DESTROY = "destroy_process_group"


class LastGroups:
    """Keeps the process groups that a replica destroyed last, until the replica ends.

    The destructor of torch's gloo group joins its threads while it holds the interpreter lock. A
    thread that has just finished an all-reduce of DDP needs that lock to release what it holds, so
    a function that trains with DDP, destroys its group and returns may hang for ever (torch 2.13,
    ProcessGroupGloo::~ProcessGroupGloo and runLoop). A replica ends by ``os._exit``: the
    destructors of the last groups never run, and those of earlier ones run when their threads have
    long been idle.

    It replaces torch's ``destroy_process_group`` from ``install`` to ``remove``.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._withdraw: Callable[[], None] = lambda: None
        self._original: Callable[..., None] | None = None

    def install(self) -> None:
        """Patch torch now, or when it is imported."""
        self._withdraw = on_import(_MODULES[0], self._patch)

    def remove(self) -> None:
        """Restore torch's own function; the kept groups stay."""
        self._withdraw()
        self._withdraw = lambda: None  # the hook refers to this object
        if self._original is not None:
            _put(self._original)
            self._original = None

    def _patch(self, module: ModuleType) -> None:
        original = getattr(module, _DESTROY, None)
        if original is None:  # a build without torch.distributed
            return
        self._original = original

        @functools.wraps(original)
        def destroy(*args: Any, **kwargs: Any) -> None:
            doomed = list(sys.modules[_MODULES[1]]._world.pg_map)
            original(*args, **kwargs)
            self._kept = doomed

        _put(destroy)


def _put(function: Callable[..., None]) -> None:
    for name in _MODULES:
        setattr(sys.modules[name], _DESTROY, function)
