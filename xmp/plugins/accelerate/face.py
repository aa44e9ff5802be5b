"""accelerate's launchers: ``from xmp.compat.accelerate import notebook_launcher``.

Names, parameters and defaults are those of accelerate 1.15 (src/accelerate/launchers.py). The rest
of accelerate stays as it is: ``Accelerator`` in the function finds the world of the launch, in
every launch of xmp's. A script for ``accelerate launch`` runs under ``xmp run``.

What differs. On a host without a device ``num_processes=2`` is a world of two on the CPU, where
accelerate starts two worlds of one unless ``Accelerator(cpu=True)`` or ACCELERATE_USE_CPU says
otherwise. ``mixed_precision`` reaches the ``Accelerator``, which it does not in accelerate 1.15.
``use_port="29500"``, the default, is any free port where there is one host. Replicas are not forks
of this process, which may therefore have used its GPU and imported bitsandbytes. A failed replica
is an ``xmp.ReplicaError``; where torch is loaded, it is torch's ``ProcessRaisedException`` as well,
which ``debug_launcher`` raises in accelerate, but not the ``ChildFailedError`` of
``notebook_launcher``. A number of processes that the host cannot have is refused before any process
exists.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xmp import _inside
from xmp._calls import checks
from xmp._calls.call_checks import check_rankless
from xmp._calls.launcher import WithoutRank
from xmp._calls.options import asked as options_of
from xmp._calls.spawn import Args, launched, public, refuse_while_importing
from xmp._os import signals
from xmp._words.errors import PlanError, wrong_type

from . import _devices, _words
from ._words import World

if TYPE_CHECKING:
    from xmp._words.types import JobPlan

__all__ = ["debug_launcher", "notebook_launcher"]


@public
def notebook_launcher(
    function: Callable[..., object],
    args: Args = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str | int = "29500",
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, object] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
) -> None:
    """Run ``function(*args)`` in ``num_processes`` replicas, where ``Accelerator()`` joins them.

    ``num_processes=1`` runs it in this process, as in accelerate, unless ``num_nodes`` or
    ``max_restarts`` asks for more; so does every number in Colab with fewer than two GPUs.

    Args:
        function: a function, a method, a lambda or another callable. What it returns is dropped,
            as in accelerate: ``xmp.launcher(function, nprocs=2)(*args)`` returns the results.
        args: a tuple or a list.
        num_processes: replicas on this host, one for each device, from 1 up; on CPUs any number.
            None is for TPUs only, and means all devices.
        mixed_precision: "no", "fp16", "bf16" or "fp8", as ACCELERATE_MIXED_PRECISION; "no" leaves
            that variable as it is.
        use_port: the port at which the replicas meet. "29500" on one host means any free port;
            another number is exactly that port.
        master_addr: the address of the first host, on every host; a single one meets on loopback.
        node_rank, num_nodes: the index of this host, and how many hosts make this call.
        rdzv_backend, rdzv_endpoint, rdzv_conf, rdzv_id: torch's rendezvous, "static" or "c10d". A
            static endpoint "host:port" replaces ``master_addr`` and ``use_port``, with one host or
            several. The others change nothing on one host, and are refused with several.
        max_restarts: how often xmp starts all replicas again after a failure; see ``xmp.spawn``.
        monitor_interval: seconds; xmp does not poll, and sees a failure at once.
        log_line_prefix_template: before every line of output: ``"[rank ${rank}]: "``, with
            ``${local_rank}`` and ``${role_name}``.

    Raises:
        PlanError: an option does not fit this host, or this process has made an
            ``AcceleratorState``. It is a ValueError.
        TypeError: a value of a wrong type.
        PortError: the port is taken. With these three nothing was started.
        ReplicaError: a replica failed.
    """
    refuse_while_importing()
    _check(function, args)
    count = _words.count("num_processes", num_processes)
    env = _words.precision(mixed_precision)
    restarts = checks.count_from_zero("max_restarts", max_restarts)
    world = _words.world(use_port, master_addr, node_rank, num_nodes).met_by(
        rdzv_backend, rdzv_endpoint, rdzv_conf, rdzv_id
    )
    _words.check_interval(monitor_interval)
    prefix = _words.prefix(log_line_prefix_template)
    alone = _devices.of_colab(count) if count != 1 and num_nodes == 1 else ""
    if alone or (count == 1 and num_nodes == 1 and not restarts):
        _run_here(function, args, env, alone)
        return
    runtime = _devices.chosen(count)
    _devices.refuse_state()
    options = {"max_restarts": restarts, "prefix": prefix, "runtime": runtime.name}
    env |= _devices.variables(runtime)
    by_hand = count is None or (num_nodes == 1 and _devices.is_xla(runtime))
    _launch(function, args, count, env, options, None if by_hand else world)


@public
def debug_launcher(
    function: Callable[..., object], args: Args = (), num_processes: int = 2
) -> None:
    """Run ``function(*args)`` in ``num_processes`` replicas on the CPU, to debug it.

    The process group (gloo) is ready before the function. A single replica has its own process too,
    which accelerate takes for a training of one process, without DistributedDataParallel.

    Args:
        function: a callable. What it returns is dropped, as in accelerate.
        args: a tuple or a list.
        num_processes: the number of replicas, from 1 up.

    Raises:
        PlanError: the number does not fit. It is a ValueError.
        TypeError: a value of a wrong type.
        ReplicaError: a replica failed; where torch is loaded, it is a ``ProcessRaisedException`` or
            ``ProcessExitedException`` of torch.multiprocessing as well.
    """
    refuse_while_importing()
    _check(function, args)
    count = _words.count("num_processes", num_processes)
    if count is None:
        raise TypeError("num_processes must be a whole number from 1 up, not None")
    env = {"ACCELERATE_MIXED_PRECISION": "no", **_devices.ON_CPU, **_devices.FORK_LAUNCHED}
    _launch(function, args, count, env, {"runtime": "cpu", "backend": "gloo"}, World(), quiet=True)


class _Training(WithoutRank):
    """The callable of each replica; it returns nothing, so nothing has to be sent."""

    alone = False

    def __call__(self, rank: int, /, *args: Any, **kwargs: Any) -> None:
        if self.alone:  # with a LOCAL_RANK, accelerate takes it for one of several (state.py)
            os.environ.pop("LOCAL_RANK", None)
        self.function(*args, **kwargs)
        _inside.synchronize()


def _check(function: object, args: object) -> None:
    if not callable(function):
        raise wrong_type("function", "callable", function)
    check_rankless(function, args)


def _launch(
    function: Callable[..., object],
    args: Args,
    count: int | None,
    env: dict[str, str],
    options: dict[str, Any],
    world: World | None,
    quiet: bool = False,
) -> None:
    """Plan, print what starts unless ``quiet``, and launch."""
    from xmp._calls.host import plan_for
    from xmp._plan.clusters import per_device

    per_device.refuse(os.environ)  # also where the call names the hosts
    if count == 1:  # otherwise xmp would run it in this process
        options["start_method"] = "forkserver" if sys.platform == "linux" else "spawn"
    training = _Training(function)
    training.alone = quiet and count == 1
    asked = options_of(training, tuple(args), {}, **options, nprocs=count, env=env)
    by_hand = None if world is None or count is None else world.by_hand(count)
    port = 0 if world is None else world.fixed_port
    with _own_words():
        plan = plan_for(asked.requested(world=by_hand, store_port=port), None)
        if not quiet:
            _say(_devices_of(plan))
        launched(asked, world=by_hand, store_port=port)


def _say(where: str) -> None:
    """Print what accelerate prints here."""
    sys.stdout.write(f"Launching training on {where}.\n")
    sys.stdout.flush()


def _devices_of(plan: JobPlan) -> str:
    replicas = plan.hosts[0].replicas
    kind = replicas[0].device.partition(":")[0].upper()
    return f"{len(replicas)} {kind}{'s' * (len(replicas) > 1)}"


@contextmanager
def _own_words() -> Iterator[None]:
    """Replace xmp's names of options by accelerate's in the PlanErrors of the block."""
    try:
        yield
    except PlanError as error:
        for xmps, word in _words.WORDS.items():
            error.args = (str(error).replace(xmps, word), *error.args[1:])
        raise


def _run_here(
    function: Callable[..., object], args: Args, env: Mapping[str, str], said: str
) -> None:
    """Call the function in this process, with these variables as long as it runs."""
    where, variables = _devices.here()
    _say(said or where)
    before = {name: os.environ.get(name) for name in (*env, *variables)}
    os.environ.update({**env, **variables})
    try:
        with signals.apart():
            function(*args)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
