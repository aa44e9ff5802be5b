"""MegEngine's launcher: ``import xmp.compat.megengine as dist``.

For a program that you port from MegEngine to torch or JAX: only ``launcher`` keeps MegEngine's
name; everything else has another. Parameters, their order and defaults are those of MegEngine
(master of October 2024, imperative/python/megengine/distributed/launcher.py). What else such
programs call, and what to call instead:

==============================================  ==================================================
``get_rank()``, ``get_world_size()``            ``xmp.rank()``, ``xmp.world_size()``
``get_local_device_id()``                       ``xmp.local_rank()``
``group_barrier()``                             ``xmp.barrier()``
``functional.all_reduce_sum(x)``                ``xmp.all_reduce(x)``; "mean", "min", "max" as op
``functional.broadcast``, ``all_gather``        ``xmp.broadcast``, ``xmp.all_gather``
``functional.remote_send``, ``remote_recv``     ``torch.distributed.send``, ``recv``
``bcast_list_(tensors)``                        ``xmp.broadcast(tensors)``, which returns them
``GradManager`` with ``make_allreduce_cb``      ``xmp.data_parallel(model)``, and ``backward()``
``WORLD``                                       nothing: omit it, the collectives are of all
``get_client().user_set``, ``user_get``         ``xmp.broadcast``, ``xmp.all_gather``
``new_group(ranks)``                            ``torch.distributed.new_group(ranks)``
``is_distributed()``, ``get_backend()``         ``is_initialized()`` … of ``torch.distributed``
``init_process_group``, ``Server``              nothing: ``launcher`` does it
==============================================  ==================================================

What differs. A failed replica ends the others at once, and the call raises ``xmp.ReplicaError``,
with rank, traceback and cause, where MegEngine raises ``AssertionError("subprocess 1 exit with
code 1")``: change an ``except AssertionError``. What does not fit is an ``xmp.PlanError`` before
any process exists. Replicas inherit nothing of the calling process, which may have used its GPU.
Programs run on CPUs and in a world of one as well, which MegEngine refuses. The decorated function
is a function, without the attributes of MegEngine's ``launcher`` objects.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from xmp import _inside
from xmp._calls import checks
from xmp._calls.call_checks import LAUNCHES, check_arguments, check_body
from xmp._calls.launcher import launcher as _launcher
from xmp._calls.spawn import public, refuse_while_importing
from xmp._calls.verbs import default_nprocs
from xmp._os import log, ports, signals
from xmp._plan.clusters import is_each_host_itself
from xmp._words.errors import PlanError, wrong_type
from xmp._words.types import PortNeed

__all__ = ["launcher"]

_PUBLIC = "xmp.compat.megengine"

P = ParamSpec("P")
R = TypeVar("R")

_RUNTIMES = {"xpu": None, "gpu": "cuda", "cuda": "cuda", "rocm": "rocm", "cpu": "cpu"}
"""MegEngine's device types (imperative/python/megengine/device.py) as runtimes; None: xmp's choice.
MegEngine's "xpu" is any device; xmp's runtime of that name is Intel's GPUs."""
_BACKENDS = {"nccl": None, "auto": None, "rccl": "nccl", "gloo": "gloo"}
"""MegEngine's backends (distributed/group.py) as torch's, which calls RCCL "nccl" as well; None:
the runtime's own. MegEngine's default is "nccl" on every device."""
_OTHERS = {"cncl": "Cambricon", "hccl": "Ascend", "ucx": "MegRay", "shm": "MegRay"}
"""Backends to which xmp has no equal, and whose they are."""
_WORDS = {
    "nprocs": "n_gpus",
    'runtime="cpu"': 'device_type="cpu"',
    "Pass runtime=": "Set XMP_RUNTIME",
}
"""xmp's names of options in its errors, and the names that they have here."""
_MOST_PORT = 65535


@overload
def launcher(
    func: Callable[P, R],
    n_gpus: int | None = ...,
    world_size: int | None = ...,
    rank_start: int = ...,
    master_ip: str = ...,
    port: int = ...,
    device_type: str = ...,
    backend: str = ...,
) -> Callable[P, list[R]]: ...


@overload
def launcher(
    func: None = None,
    n_gpus: int | None = ...,
    world_size: int | None = ...,
    rank_start: int = ...,
    master_ip: str = ...,
    port: int = ...,
    device_type: str = ...,
    backend: str = ...,
) -> Callable[[Callable[P, R]], Callable[P, list[R]]]: ...


@public
def launcher(
    func: Callable[..., Any] | None = None,
    n_gpus: int | None = None,
    world_size: int | None = None,
    rank_start: int = 0,
    master_ip: str = "localhost",
    port: int = 0,
    device_type: str = "xpu",
    backend: str = "nccl",
) -> Callable[..., Any]:
    """Make a function launch itself: ``@launcher``, ``@launcher(n_gpus=2)``, ``launcher(f)(x)``.

    The process group is ready before the function. In a replica the decorated name calls the
    function itself. Unlike ``xmp.launcher``, this gives a single replica its own process, too.

    Args:
        func: a function, a method, or any other callable but a class; not a coroutine or generator.
        n_gpus: replicas on this host, from 1 up; None: one for each device.
        world_size: the replicas of all hosts together, each of which makes this call; None:
            ``n_gpus``, or what a scheduler's variables say of other hosts.
        rank_start: the global rank of this host's first replica, a multiple of its replicas.
        master_ip: the address of the host with ``rank_start=0``, on every host. The default is
            for a single host, where this and ``port`` change nothing.
        port: the port at which that host listens. With 0 there, the first call chooses a free port
            and shows it on standard error; give it to the other hosts. Later calls keep it.
        device_type: "xpu" (xmp chooses), "gpu" or "cuda" (NVIDIA), "rocm" (AMD), "cpu".
        backend: "nccl" or "auto" for the runtime's own (on CPUs that is gloo), "rccl" for AMD's
            GPUs, "gloo".

    Returns:
        A function that launches; without ``func``, a decorator that makes one. A call runs ``func``
        in every replica of this host, and returns the list of their results by local rank: None for
        a replica that ended with exit code 0 before it returned, which a warning names.

    Raises:
        PlanError: an option fits no host (when it decorates), or not this one (when it is called).
        TypeError: a value of a wrong type.
        XmpError: otherwise a call raises what ``xmp.spawn`` does.
    """
    world = _World(
        checks.whole_number("n_gpus", n_gpus),
        checks.whole_number("world_size", world_size),
        checks.count_from_zero("rank_start", rank_start),
        _text("master_ip", master_ip),
        checks.count_from_zero("port", port),
    )
    world.check()
    options = _options(_text("device_type", device_type), _text("backend", backend))
    if func is None:
        return lambda function: _decorated(function, world, options)
    return _decorated(func, world, options)


def _decorated(
    fn: Callable[..., Any], world: _World, options: dict[str, Any]
) -> Callable[..., Any]:
    check_body(fn)

    def call(*args: Any, **kwargs: Any) -> Any:
        if _inside.is_in_function():
            with signals.apart():
                return fn(*args, **kwargs)
        refuse_while_importing()
        check_arguments(fn, args, kwargs)
        try:
            return _launcher(fn, **world.place(options.get("runtime")), **options)(*args, **kwargs)
        except PlanError as error:
            for xmps, word in _WORDS.items():
                error.args = (str(error).replace(xmps, word), *error.args[1:])
            raise

    call.__name__ = getattr(fn, "__name__", type(fn).__name__)  # for tracebacks
    launching = functools.update_wrapper(public(call), fn)
    launching.__dict__[LAUNCHES] = True
    return launching


# --- where this host's replicas stand in the world -----------------------------------------------


class _MasterPort:
    """The port at which this host waits for the others: a free one, held from its choice on."""

    def __init__(self) -> None:
        self._number = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _MasterPort, ()  # a function that travels by value leaves its socket here

    def chosen(self, address: str) -> int:
        """Return the port, the same at every call; show it when it is chosen."""
        if not self._number:
            lease = ports.lease([PortNeed("master_ip", "reserve", address)])
            weakref.finalize(self, lease.close)
            self._number = lease.ports["master_ip"]
            log.say(f"xmp: rank 0 is at {address}: give the other hosts port={self._number}")
        return self._number


@dataclass(frozen=True)
class _World:
    """This host's place among all hosts, as the options say it."""

    n_gpus: int | None
    world_size: int | None
    rank_start: int
    master_ip: str
    port: int
    master: _MasterPort = field(default_factory=_MasterPort)

    def check(self) -> None:
        """Raise PlanError for options that fit no host."""
        for name, number in (("n_gpus", self.n_gpus), ("world_size", self.world_size)):
            if number is not None and number < 1:
                raise PlanError(
                    f"{name}={number}: give a number from 1 up, or None", code="XMP-P01"
                )
        if self.port > _MOST_PORT:
            raise PlanError(
                f"port={self.port}: give a number from 1 to {_MOST_PORT}, or 0", code="XMP-P01"
            )
        if self.rank_start and self.world_size is None:
            raise PlanError(
                f"rank_start={self.rank_start} without world_size: give the number of replicas of "
                "all hosts as world_size=, or leave rank_start= out",
                code="XMP-H05",
            )
        if self.rank_start and not self.port:
            raise PlanError(
                f"rank_start={self.rank_start}, port=0: you have to assign a port for the server "
                "of rank 0. Give the one that the host with rank_start=0 was given, or has shown",
                code="XMP-H05",
            )
        if self.n_gpus is not None:
            self._check_hosts(self.n_gpus)

    def place(self, runtime: str | None) -> dict[str, Any]:
        """Return the arguments of ``xmp.launcher``; choose the port on the first of several hosts.

        Raise PlanError for what does not fit this host, PortError if it does not have the address.
        """
        here: dict[str, Any] = {"nprocs": self.n_gpus}
        if self.n_gpus == 1:  # otherwise xmp would run it in this process
            here["start_method"] = "forkserver" if sys.platform == "linux" else "spawn"
        if self.world_size is None:
            return here
        local = self.n_gpus or default_nprocs(runtime)
        self._check_hosts(local)
        here |= {"rank_start": self.rank_start, "world_size": self.world_size}
        if local == self.world_size:
            return here
        port = self.port or self.master.chosen(self.master_ip)
        return {**here, "master_ip": self.master_ip, "port": port}

    def _check_hosts(self, local: int) -> None:
        """Raise PlanError unless hosts with ``local`` replicas each can make up this world."""
        start, size = self.rank_start, self.world_size
        if size is None:
            return
        replicas = f"{local} replica{'s' * (local > 1)}"
        if start % local or size % local or start >= size:
            raise PlanError(
                f"rank_start={start} and world_size={size} do not fit {replicas} on each "
                f"host. Allowed: multiples of {local}, rank_start below world_size. n_gpus= "
                "changes the number on each host",
                code="XMP-H05",
            )
        address = self.master_ip
        if size > local and (not address or is_each_host_itself(address)):
            raise PlanError(
                f"world_size={size} with {replicas} on each host is {size // local} hosts, "
                f"but master_ip={address!r} is each host itself. Give the address of the host with "
                "rank_start=0 on every host",
                code="XMP-H04",
            )


# --- MegEngine's words ----------------------------------------------------------------------------


def _options(device_type: str, backend: str) -> dict[str, Any]:
    """Return the runtime and the backend for ``xmp.launcher``; raise PlanError for unknown ones."""
    if device_type not in _RUNTIMES:
        raise PlanError(
            f"device_type={device_type!r}: xmp has no runtime for it. Allowed: "
            f"{', '.join(map(repr, _RUNTIMES))}; or xmp.launcher, whose runtime= has more",
            code="XMP-P06",
        )
    if backend not in _BACKENDS:
        whose = f" is of {_OTHERS[backend]}" if backend in _OTHERS else ""
        raise PlanError(
            f"backend={backend!r}{whose}: xmp has no equal of it. Allowed: "
            f"{', '.join(map(repr, _BACKENDS))}",
            code="XMP-P12",
        )
    runtime = _RUNTIMES[device_type]
    if backend == "rccl":
        if runtime not in (None, "rocm"):
            raise PlanError(
                f"backend='rccl' is for AMD's GPUs, and device_type={device_type!r} is not one of "
                "them. Leave backend= out, or give device_type='rocm'",
                code="XMP-P12",
            )
        runtime = "rocm"
    named = {"runtime": runtime, "backend": _BACKENDS[backend]}
    return {name: value for name, value in named.items() if value is not None}


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, "a string", value)
    return value


if not TYPE_CHECKING:  # type checkers know that there are no others

    def __getattr__(name: str) -> Any:
        said = f"module {_PUBLIC!r} has no attribute {name!r}"
        if name.startswith("_"):  # which the import system and inspect ask for
            raise AttributeError(said)
        raise AttributeError(f"{said}: help({_PUBLIC}) shows what to call instead")
