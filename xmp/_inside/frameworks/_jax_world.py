"""A replica's part in ``jax.distributed``: it joins as planned, and answers ``initialize()``.

A program that calls ``jax.distributed.initialize()`` itself finds that done: arguments that agree
with the launch do nothing, those that contradict it are refused with both values. xmp replaces
``initialize`` in the two modules that have it and, for a program that has imported the function
itself, the method behind it, in the replica alone. ``leave`` puts them back.

The parameters are those of ``jax/_src/distributed.py`` of jax 0.10.2; those that another version
adds are passed on.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from xmp._inside import channel
from xmp._os.signals import held_ends
from xmp._words.replica_info import ReplicaInfo

from ._jax_wire import FOREVER
from ._meeting_places import is_loopback, leads_to, meeting_places, wait_for_listener

__all__ = ["JaxWorld"]

_MODULES = ("jax._src.distributed", "jax.distributed")
_HOST_DEVICES = "--xla_force_host_platform_device_count"
_LINGER = 5.0
"""Seconds; the supervisor waits less for failures that came first but are reported later."""
_CONNECTING = ("initialization_timeout",)
"""Arguments that concern only the connection, which exists already."""


class JaxWorld:
    """The world of this launch; ``coordinator`` is its "address:port"."""

    def __init__(self, info: ReplicaInfo, coordinator: str) -> None:
        self._info = info
        self._coordinator = coordinator
        ids = info.settings.get("local_device_ids")
        self._ids = [int(number) for number in ids.split(",")] if ids else None
        self._pid = os.getpid()
        self._wishes: dict[str, Any] = {}
        self._rounds = 0
        self._joining = False
        self._undo: list[Callable[[], None]] = []
        self._public: Any = None
        self._abandoned: tuple[Any, ...] = ()
        self._initialize: Callable[..., None] | None = None
        self._places = meeting_places(coordinator)

    def install(self, distributed: Any) -> None:
        """Answer ``initialize()`` from here on; ``distributed`` is ``jax._src.distributed``."""
        self._initialize = original = distributed.initialize
        answering = self._answering(original)
        for name in _MODULES:
            known = getattr(sys.modules.get(name), "initialize", original)
            self._undo.append(functools.partial(_set, name, known))
            _set(name, answering)  # the public module takes it from the other when it is imported
        state = distributed.global_state
        method = state.initialize
        self._undo.append(functools.partial(delattr, state, "initialize"))
        state.initialize = self._answering(method)

    def join(self, **wishes: Any) -> None:
        """Connect to the other replicas; ``wishes`` are further parameters of ``initialize``."""
        import jax
        from jax._src import distributed

        self._keep_sigterm(jax)
        if is_loopback(self._coordinator):
            self._connect_on_loopback(jax)
        if self._rounds and self._info.host_index == 0:
            # Rank 0 comes here when it has left the service of the last round.
            self._meet(f"jax/{self._rounds}")
        if self._info.rank != 0:
            wait_for_listener(self._coordinator)
        if not self._rounds:
            atexit.register(self._abandon, distributed.global_state)
        self._wishes = {**self._wishes, **wishes}
        # Kept: at the end, sys.modules["jax"] may be the user's own module, or none.
        self._public = jax.distributed
        self._joining = True
        try:
            initialize = self._initialize or distributed.initialize
            initialize(**self._arguments(initialize))
        finally:
            self._joining = False
        self._rounds += 1

    def leave(self) -> None:
        """Leave together: rank 0 is the coordinator, and its end would abort the others."""
        atexit.unregister(self._abandon)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._initialize = None
        if self._rounds:
            self._public.shutdown()

    def _answering(self, initialize: Callable[..., None]) -> Callable[..., None]:
        """Return a replacement for ``initialize`` of the module or of its state.

        The two differ in the order of their parameters.
        """
        signature = inspect.signature(initialize)
        defaults = {name: each.default for name, each in signature.parameters.items()}

        @functools.wraps(initialize)
        def answer(*arguments: Any, **named: Any) -> None:
            if self._joining or os.getpid() != self._pid:  # a child of a replica is no replica
                initialize(*arguments, **named)
                return
            try:
                given = signature.bind(*arguments, **named).arguments
            except TypeError as error:
                raise TypeError(f"initialize() {error}") from None
            given = {k: value for k, value in given.items() if value != defaults[k]}
            if self._concerns(given):
                self._answer(given)
            else:
                initialize(*arguments, **named)

        return answer

    def _concerns(self, given: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments means the world of this launch."""
        return True

    def _answer(self, given: Mapping[str, Any]) -> None:
        from jax._src import distributed, xla_bridge

        self._refuse(given)
        planned = self._planned()
        wishes = {name: value for name, value in given.items() if name not in planned}
        state = distributed.global_state
        if state.client is None:
            if not xla_bridge.backends_are_initialized():
                self.join(**wishes)
            elif self._info.world_size > 1:
                held = (
                    "in the world that it has left" if self._rounds else "as those of one process"
                )
                raise RuntimeError(
                    f"jax.distributed.initialize(): JAX has initialised its devices {held}. "
                    "Call it before the first use of a device"
                )
            return
        lasting = {n: value for n, value in wishes.items() if n not in _CONNECTING}
        if all(self._wishes.get(name) == value for name, value in lasting.items()):
            return
        if xla_bridge.backends_are_initialized():
            raise RuntimeError(
                f"jax.distributed.initialize({_words(lasting)}): JAX has initialised its devices "
                f"with {_words(self._wishes) or 'the defaults'}. Call it before the first use of a "
                "device"
            )
        state.shutdown()
        self.join(**wishes)

    def _refuse(self, given: Mapping[str, Any]) -> None:
        """Raise ValueError where an argument contradicts the launch."""
        planned = self._planned()
        for name, value in given.items():
            if name in planned and not self._agrees(name, value):
                raise ValueError(
                    f"jax.distributed.initialize({name}={value!r}): xmp has launched this process "
                    f"with {name}={self._shown(name)!r} (rank {self._info.rank} of "
                    f"{self._info.world_size}). Leave the argument out, or give xmp's value"
                )

    def _agrees(self, name: str, value: Any) -> bool:
        if name in ("coordinator_address", "coordinator_bind_address"):
            return isinstance(value, str) and any(leads_to(value, each) for each in self._places)
        if name == "local_device_ids":
            return self._are_ours(value)
        planned = self._planned()[name]
        return bool(value == planned) and not isinstance(value, bool)

    def _are_ours(self, value: Any) -> bool:
        """Return whether these are its devices, by the plan or as GPU programs number them."""
        ids = [value] if isinstance(value, int) else list(value)
        return ids in (self._shown("local_device_ids"), [self._info.local_rank])

    def _shown(self, name: str) -> Any:
        """Return the planned value; where JAX ignores ids (CPU), those of all its own devices."""
        value = self._planned()[name]
        count = int(self._info.settings.get("num_cpu_devices", 0))
        if value is not None or not count:
            return value
        in_flags = re.findall(rf"{_HOST_DEVICES}=(\d+)", os.environ.get("XLA_FLAGS", ""))
        return list(range(count if count > 0 else int((in_flags or ["1"])[-1])))

    def _planned(self) -> dict[str, Any]:
        return {
            "coordinator_address": self._coordinator,
            "num_processes": self._info.world_size,
            "process_id": self._info.rank,
            "local_device_ids": self._ids,
            "coordinator_bind_address": self._coordinator,
            # Nothing is left to detect: JAX must not read the variables of Slurm, MPI, Kubernetes.
            "cluster_detection_method": "deactivate",
        }

    def _arguments(self, initialize: Callable[..., None]) -> dict[str, Any]:
        """Return the arguments for ``initialize``, as far as this version of it knows them."""
        # A replica that is done waits for the others, however long they work.
        wanted = {**self._planned(), "shutdown_timeout_seconds": FOREVER // 1000, **self._wishes}
        known = inspect.signature(initialize).parameters
        return {name: value for name, value in wanted.items() if name in known}

    def _keep_sigterm(self, jax: Any) -> None:
        """Switch off JAX's preemption service, unless the user has switched it on.

        It catches SIGTERM and the process goes on: every failed launch would last the full grace.
        """
        if os.environ.get("JAX_ENABLE_PREEMPTION_SERVICE"):
            return
        if "jax_enable_preemption_service" in jax.config.values:
            self._update(jax, "jax_enable_preemption_service", False)
            return
        from jax._src import distributed  # before 0.7 there is no switch

        distributed.global_state.initialize_preemption_sync_manager = lambda: None

    def _connect_on_loopback(self, jax: Any) -> None:
        """Make gloo listen on loopback; by default it takes the address of the host's name.

        Switch off JAX's warning about proxies as well, which loopback does not use.
        """
        from jax._src import xla_bridge

        library, name = xla_bridge._jax, "make_gloo_tcp_collectives"
        make = getattr(library, name)

        def make_on_loopback(*arguments: Any, **named: Any) -> Any:
            return make(*arguments, **{"hostname": "127.0.0.1", **named})

        self._undo.append(functools.partial(setattr, library, name, make))
        setattr(library, name, make_on_loopback)
        if "jax_check_proxy_envs" in jax.config.values:
            self._update(jax, "jax_check_proxy_envs", False)

    def _update(self, jax: Any, name: str, value: Any) -> None:
        """Change JAX's configuration until this world is left."""
        self._undo.append(functools.partial(jax.config.update, name, jax.config.values[name]))
        jax.config.update(name, value)

    def _abandon(self, state: Any) -> None:
        """Drop JAX's connections without closing them: this replica has failed.

        JAX's own exit handler, which runs after this one, would wait for replicas that are ended.
        """
        if os.getpid() == self._pid:
            self._abandoned = state.client, state.service  # if freed, they would still say goodbye
            state.client = state.service = None

    def linger(self) -> None:
        """Outlive the others, as the coordinator of a launch that fails.

        If it ends first, they abort with messages of their own that hide the cause. The supervisor
        has the report by now and ends all of them, by SIGTERM or, after Ctrl-C, by SIGKILL.
        """
        if self._info.rank == 0 and self._info.world_size > 1:
            end = time.monotonic() + _LINGER
            while time.monotonic() < end and not held_ends:
                time.sleep(0.02)  # PEP 475: a longer sleep goes on after the signal

    def _meet(self, key: str) -> None:
        """Wait until this host's first replica comes here too."""
        between = channel()
        if between is not None:
            between.share(key, lambda: None, owner=0)


def _set(module: str, initialize: Callable[..., None]) -> None:
    if module in sys.modules:
        sys.modules[module].initialize = initialize  # type: ignore[attr-defined]


def _words(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
