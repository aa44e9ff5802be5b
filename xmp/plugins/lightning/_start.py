"""The start of xmp's replicas for one of Lightning's launchers: the Trainer's, or Fabric's."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from xmp._calls import verbs
from xmp._calls.launcher import without_rank
from xmp._calls.spawn import launched
from xmp._plan.clusters import per_device
from xmp._plan.clusters.launchers import BY_HAND, TORCHRUN
from xmp._words.errors import PlanError
from xmp._words.types import WorldByHand

__all__ = ["Launching", "check_accelerator", "check_place", "is_started"]

_OF_A_LAUNCHER = {BY_HAND.address, BY_HAND.port, BY_HAND.host, TORCHRUN.world}
"""The variables that Lightning's documentation says to set for processes started by hand."""
_OF_PLAN = ("runtime", "devices", "env", "threads", "bind")
_RUNTIMES = {"cpu": ("cpu",), "cuda": ("cuda", "rocm"), "xpu": ("xpu",)}
"""The runtimes of replicas for each of torch's types of device: for "cuda" NVIDIA's, and AMD's."""


def is_started(strategy: Any) -> bool:
    """Return whether a launcher started one process for every device, of which this is one.

    Raise PlanError where Lightning does not see that, or asks for another number of processes.
    """
    environment, count = strategy.cluster_environment, strategy.num_processes
    found = per_device.launches_apart(os.environ) or per_device.started(os.environ)
    if environment is not None and _is_external(environment):
        _check_size(found, count, strategy.num_nodes)
        _check_size_here(count, strategy.num_nodes)
        return True
    if found is not None:
        raise PlanError(
            f"{found.launcher} has started this process for one device ({found.given}), but "
            f"Lightning's {type(environment).__name__} does not see that. Give the Trainer or "
            f"Fabric the environment of that launcher as plugins=, or {found.advice}.",
            code="XMP-P09",
        )
    return False


def _is_external(environment: Any) -> bool:
    """Return whether the environment is that of processes which another launcher has started.

    Lightning's own environment says so wherever LOCAL_RANK is set (2.6, LightningEnvironment). If,
    outside of xmp's replicas, no variable says where the processes meet or how many they are, that
    LOCAL_RANK is left over from another launch.
    """
    from xmp import _inside

    own = type(environment).__name__ == "LightningEnvironment"
    left_over = own and not _inside.is_replica() and os.environ.keys().isdisjoint(_OF_A_LAUNCHER)
    return environment.creates_processes_externally and not left_over


def _check_size(found: per_device.Started | None, count: int, hosts: int) -> None:
    if found is not None and found.info.world_size != count * hosts:
        raise PlanError(
            f"devices={count} and num_nodes={hosts} make {count * hosts} processes, but "
            f"{found.launcher} has started {found.info.world_size} ({found.given}). Give "
            f"devices={found.info.local_world_size}.",
            code="XMP-P08",
        )


def _check_size_here(count: int, hosts: int) -> None:
    """Do the same in a replica of xmp's, of which Lightning knows only that it has a LOCAL_RANK."""
    from xmp import _inside

    if _inside.is_replica() and _inside.world_size() != count * hosts:
        raise PlanError(
            f"devices={count} and num_nodes={hosts} make {count * hosts} processes, but this is a "
            f"replica of {_inside.world_size()}. Give devices={_inside.local_world_size()}, or "
            "another strategy for a training in this replica alone.",
            code="XMP-P03",
        )


def check_accelerator(accelerator: Any, devices: Any) -> None:
    """Raise PlanError for an accelerator on which xmp starts no replicas for Lightning."""
    kinds = {getattr(each, "type", None) or type(each).__name__ for each in devices or ()}
    if not kinds <= set(_RUNTIMES):
        raise PlanError(
            f"strategy='xmp' with {type(accelerator).__name__} ({', '.join(sorted(kinds))}): xmp "
            f"starts Lightning's replicas on {', '.join(_RUNTIMES)}. Choose "
            "accelerator='cpu' or 'cuda', or another strategy.",
            code="XMP-P06",
        )


class Launching:
    """What xmp's launchers of the Trainer and of Fabric share; see Lightning's own launcher.

    A mixin for ``_MultiProcessingLauncher``.
    """

    _lightnings: Any
    """The module with Lightning's own launcher."""

    def __init__(self, strategy: Any, options: dict[str, Any]) -> None:
        # Lightning's own __init__ checks the start method by multiprocessing's names.
        self._strategy = strategy
        self._start_method = options.get("start_method")
        self._options = options
        self._already_fit = False
        self.procs: list[Any] = []
        """The replicas of the latest launch: they have the attributes of ``Process``."""

    @property
    def is_interactive_compatible(self) -> bool:
        """True: a cell of a notebook can launch."""
        return True

    def _started(
        self,
        body: Callable[..., Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        others: Mapping[str, Any],
    ) -> Any:
        """Start ``body(args, kwargs, *others, self, state, function)`` in a replica per device.

        ``args`` and ``kwargs`` are those of ``function``, ``state`` is Lightning's snapshot of this
        process's. Return a ProcessContext.

        Raise what ``xmp.spawn`` raises, with arguments named as the user knows them.
        """
        strategy, options = self._strategy, self._options
        snapshot = self._lightnings._GlobalStateSnapshot.capture()
        others = {**others, "strategy.launcher": self, "the global state": snapshot}
        place = _place(strategy)
        called = (args, kwargs, *others.values(), function)
        try:
            asked = without_rank(body, called, {}, join=False, **{**options, **place})
            named = getattr(function, "__qualname__", asked.fn.__qualname__)
            asked.fn.__qualname__ = named
            context = launched(asked, world=_world(strategy, {**options, **place}))
        except PlanError as error:
            error._add(_in_lightnings_words(strategy))
            raise
        except TypeError as error:
            _raise_with_names(error, function, tuple(others))
        self.procs = context.processes
        return context

    def __getstate__(self) -> dict[str, Any]:
        # Replicas need neither; an observer's function might not be picklable.
        return {**self.__dict__, "procs": [], "_options": {}}


def _in_lightnings_words(strategy: Any) -> str:
    return (
        f"Lightning asked for this: nprocs and devices are its devices= ({strategy.num_processes} "
        f"on this host), and the number of hosts is its num_nodes= ({strategy.num_nodes})."
    )


# --- which replicas -------------------------------------------------------------------------------


def _place(strategy: Any) -> dict[str, Any]:
    """Return the options ``nprocs``, ``runtime`` and ``devices`` for the strategy's devices."""
    kind = strategy.parallel_devices[0].type
    found: dict[str, Any] = {"nprocs": strategy.num_processes, "runtime": _runtime(kind)}
    if kind != "cpu":
        found["devices"] = [each.index for each in strategy.parallel_devices]
    return found


def _runtime(kind: str) -> str:
    import torch

    is_amds = kind == "cuda" and torch.version.hip is not None
    return _RUNTIMES[kind][1 if is_amds else 0]


def _world(strategy: Any, options: Mapping[str, Any]) -> WorldByHand | None:
    """Return the world of several hosts that Lightning's variables and ``num_nodes`` name.

    None where xmp finds the same number of hosts by itself. Raise PlanError where ``num_nodes``
    contradicts Lightning's environment, or is 1 where the host's variables name several hosts.
    """
    count, hosts = strategy.num_processes, strategy.num_nodes
    environment = strategy.cluster_environment
    if environment.world_size() != hosts * count:
        raise PlanError(
            f"{type(environment).__name__} has a world of {environment.world_size()} processes, "
            f"but devices={count} and num_nodes={hosts} make {hosts * count}. Change one of them.",
            code="XMP-P08",
        )
    node = environment.node_rank()
    if hosts == 1 and node != 0:
        raise PlanError(
            f"num_nodes=1, but {type(environment).__name__} has node_rank={node}. Unset NODE_RANK "
            "and GROUP_RANK, or give Trainer(num_nodes=…).",
            code="XMP-P08",
        )
    found = _world_of_variables(options, count, hosts)
    if found == hosts * count:
        return None
    if hosts == 1:
        raise PlanError(
            f"devices={count}, num_nodes=1: but this host's variables name {found // count} hosts. "
            f"Give Trainer(num_nodes={found // count}), or unset the variables that `xmp plan` "
            "names.",
            code="XMP-P08",
        )
    start = environment.node_rank() * count
    return WorldByHand(start, hosts * count, environment.main_address, environment.main_port)


def _world_of_variables(options: Mapping[str, Any], count: int, hosts: int) -> int:
    """Return the replicas on the hosts that the environment names; 0 where it names only some.

    Lightning reads NODE_RANK, MASTER_ADDR and MASTER_PORT, and has the number from ``num_nodes``.
    """
    try:
        known = {name: options[name] for name in _OF_PLAN if name in options}
        return verbs.plan(count, **known).world_size
    except PlanError:
        if hosts == 1:
            raise
        return 0


def check_place(strategy: Any) -> None:
    """Raise RuntimeError in a replica to which the cluster environment gives another rank."""
    from xmp import _inside

    said = strategy.global_rank, strategy.world_size
    made = _inside.rank(), _inside.world_size()
    if said != made:
        raise RuntimeError(
            f"{type(strategy.cluster_environment).__name__} says that this is rank {said[0]} of "
            f"{said[1]}, but xmp has started it as rank {made[0]} of {made[1]}: its methods must "
            "read RANK, LOCAL_RANK and WORLD_SIZE when they are called. Without this plug-in, "
            "Lightning's own environment does."
        )


# --- words ----------------------------------------------------------------------------------------


def _raise_with_names(
    error: TypeError, function: Callable[..., Any], others: tuple[str, ...]
) -> NoReturn:
    """Raise it with the user's name of an argument: ``model.lock``, not ``args[0][0].lock``."""
    names = [*inspect.signature(function).parameters]
    text = str(error)
    found = re.match(r"args\[(\d)\](?:\[(?:(\d+)|'(\w+)')\])?", text)
    if found is None:
        raise error
    place, index, keyword = int(found[1]), found[2], found[3]
    if place > 1:
        known = (*others, "the function")[place - 2]
        text = text.replace(f"args[{place}]", known, 1)
    elif keyword is not None or (index is not None and int(index) < len(names)):
        known = keyword or names[int(index)]
        text = known + text[found.end() :]
    raise TypeError(text) from error.__cause__
