"""``spawn(func, args)``: a function without a rank on every device, with Paddle's options."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from xmp import _processes
from xmp._calls.spawn import Args, launched, public, refuse_while_importing
from xmp._words.errors import wrong_type

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from xmp._calls.options import Asked
    from xmp._plan.runtimes import Runtime
    from xmp._words.types import HostFacts, HostsByHand, RuntimeName, StartMethod

    from ._options import Options
    from ._replicas import Replicas

    class PaddleOptions(TypedDict, total=False):
        """The keywords of ``spawn``; the last five are deprecated."""

        start_method: StartMethod | None
        gpus: str | list[int] | tuple[int, ...] | None
        xpus: str | list[int] | tuple[int, ...] | None
        ips: str | None
        backend: str | None
        print_config: bool | None
        runtime: RuntimeName | None
        selected_devices: str | list[int] | tuple[int, ...] | None
        started_port: int | str | None
        cluster_node_ips: str | None
        node_ip: str | None
        use_paddlecloud: bool | None


__all__ = ["MultiprocessContext", "spawn"]

R = TypeVar("R")
_FACE = "xmp.compat.paddle.spawn"


class MultiprocessContext(_processes.ProcessContext[R]):
    """The handle that ``spawn`` returns, of replicas that run or have ended.

    ``join(timeout=None)`` waits for all: it returns True when all have ended, False when
    ``timeout`` seconds are over, and raises ReplicaError when one has failed. ``results()`` waits,
    and returns what the functions returned, in rank order. ``processes`` and ``sentinels`` are as
    in Paddle.
    """

    @property
    def return_queues(self) -> NoReturn:
        """Paddle's queues of return values, which nothing empties; there are none here."""
        raise AttributeError(
            "return_queues: call results(), which waits for all replicas and returns what their "
            "functions returned, in rank order"
        )

    @property
    def error_queues(self) -> NoReturn:
        """Paddle's queues of tracebacks; there are none here."""
        raise AttributeError(
            "error_queues: join() and results() raise the failure of a replica, with its cause"
        )


@public
def spawn(
    func: Callable[..., R],
    args: Args = (),
    nprocs: int = -1,
    join: bool = True,
    daemon: bool = False,
    **options: Unpack[PaddleOptions],
) -> MultiprocessContext[R]:
    """Run ``func(*args)`` on every device of this host; ``func`` gets no rank.

    The runtime is the one that ``runtime=`` or XMP_RUNTIME names. Otherwise xmp chooses as in
    ``xmp.spawn``, by what this process has loaded: Paddle, torch or JAX. Where it has loaded none
    of them, what ``func`` imports inside its body counts as loaded; where that is none of them
    either, Paddle does, if torch is not installed. With Paddle every replica is a trainer, joined
    to the others. With torch, and where nothing names a framework but torch is installed, torch's
    process group is ready before ``func``: this imports torch in every replica. With JAX its own
    processes are joined, and no torch is started. ``print_config=True`` shows what was chosen, and
    why.

    Args:
        func: a function, a method, a lambda or another callable.
        args: a tuple or a list, for ``func``.
        nprocs: replicas on this host; -1 for one on each device or, without devices, on each core
            that this process may use.
        join: wait for the replicas; the context is returned in either case.
        daemon: with ``join=False``, end the replicas when this process ends.
        start_method: "spawn", "fork" or "forkserver"; None for xmp's own, which inherits nothing of
            this process, as Paddle's default "spawn" does not, and is faster.
        gpus, xpus: the ids of devices as in CUDA_VISIBLE_DEVICES (not positions in it): ``"4,5"``
            or ``[4, 5]``. Their number is ``nprocs``.
        ips: the addresses or names of all hosts with commas, the same on each host, which finds
            itself by its own addresses. They meet at the first, at port FLAGS_START_PORT or 6070.
        backend: "auto", "gloo", "nccl", "xccl", "bkcl", "heter" or "flagcx", as far as the runtime
            has it. Under Paddle the replicas have it as PADDLE_DISTRI_BACKEND.
        print_config: print the plan on standard output before the replicas start.
        runtime: xmp's name of a runtime: "paddle", "cuda", "cpu" …

    Returns:
        The context, after the end of all replicas or, with ``join=False``, at once.

    Raises:
        PlanError: the call does not fit this host, or an option is not known.
        TypeError: a value of a wrong type. With both, nothing was started.
        XmpError: otherwise as ``xmp.spawn``.

    Deprecated, with a DeprecationWarning: ``selected_devices started_port cluster_node_ips node_ip
    use_paddlecloud``. Names and defaults are those of Paddle 3.3.1 (distributed/spawn.py).
    """
    refuse_while_importing()
    asked = _asked(func, args, nprocs, join, daemon, dict(options))
    context: MultiprocessContext[R] = MultiprocessContext(_launched(asked)._launch)
    if join:
        try:
            context._join(None, owned=True)
        except BaseException:
            context.terminate()
            raise
    return context


@dataclass(frozen=True)
class _Asked:
    """A call of ``spawn`` in the terms of xmp."""

    call: Asked
    """The call of ``xmp.spawn``."""
    world: HostsByHand | None
    port: int
    notes: tuple[str, ...]
    imports: tuple[str, ...]
    print_config: bool


def _asked(
    func: Any, args: Any, nprocs: object, join: object, daemon: object, given: dict[str, Any]
) -> _Asked:
    """Check the arguments, choose the runtime and translate; raise PlanError or TypeError."""
    from xmp._calls.call_checks import check_rankless
    from xmp._calls.host import host_facts
    from xmp._calls.launcher import without_rank
    from xmp._plan.clusters import per_device

    from ._ips import by_hand, with_cloud
    from ._options import options_of
    from ._replicas import count_of, mapped, replicas

    check_rankless(func, args)
    for name, value in (("join", join), ("daemon", daemon)):
        if not isinstance(value, bool):
            raise wrong_type(name, "True or False", value)
    count = count_of(nprocs)
    options = with_cloud(options_of(given))
    per_device.refuse(os.environ)  # also where the call names the hosts
    world, port = by_hand(options)
    facts = host_facts()
    runtime, imports = _chosen(func, options, facts)
    backend, variables = mapped(options.backend, runtime, facts)
    facts = replace(facts, env={**facts.env, **variables})
    wanted = replicas(count, options, runtime, facts)
    spawned = {
        "nprocs": wanted.nprocs, "devices": wanted.devices, "backend": backend,
        "env": variables or None, "runtime": options.runtime, "start_method": options.start_method,
        "daemon": daemon,
    }  # fmt: skip
    notes = _notes(runtime, facts, wanted, options, imports)
    for_spawn = without_rank(func, args, {}, join=False, **spawned)
    return _Asked(for_spawn, world, port, notes, imports, options.print_config)


def _chosen(func: Any, options: Options, facts: HostFacts) -> tuple[Runtime, tuple[str, ...]]:
    """Return the runtime, and the frameworks that count as loaded though nothing has loaded any.

    These are what ``func`` imports or, where that is none, Paddle without torch on this host.
    """
    from xmp._payload.hints import modules_imported
    from xmp._plan.planner import choose, with_imports
    from xmp._plan.runtimes import runtimes
    from xmp._words.types import Request

    families = [r.family for r in runtimes() if r.family]
    imports: tuple[str, ...] = ()
    if options.runtime is None and not {*families} & {*facts.loaded}:
        inside = {name.partition(".")[0] for name in modules_imported(func)}
        imports = tuple(dict.fromkeys(f for f in families if f in inside))
        if not imports and facts.frameworks.get("paddle") and not facts.frameworks.get("torch"):
            imports = ("paddle",)
    request = Request(runtime=options.runtime, imports=imports)
    return choose(request, with_imports(request, facts))[0], imports


def _notes(
    runtime: Runtime, facts: HostFacts, wanted: Replicas, options: Options, imports: tuple[str, ...]
) -> tuple[str, ...]:
    """Return what was decided for the user, as notes of the plan."""
    notes = [f"{_FACE}: {_ready(runtime, facts, options)}"]
    if imports:
        notes.append(
            f"this process has loaded no framework; what counts as loaded is {', '.join(imports)}: "
            "the function imports it, or it is what is installed"
        )
    if wanted.every_core:
        notes.append(
            f"nprocs=-1 without devices is one replica for each of {wanted.nprocs} usable cores, "
            "as in Paddle"
        )
    return tuple(notes)


def _ready(runtime: Runtime, facts: HostFacts, options: Options) -> str:
    """Say what connects the replicas when the function starts."""
    if runtime.name == "paddle":
        return "every replica is a trainer of Paddle's, and joined before the function starts"
    other = '; runtime="paddle" is for functions that use Paddle'
    if runtime.name == "jax":
        return f"JAX connects the replicas, and no process group of torch's is formed{other}"
    if not runtime.default_backend or not facts.frameworks.get("torch"):
        return f"runtime {runtime.name!r} forms no process group (torch is not installed){other}"
    backend = options.backend if options.backend not in (None, "auto") else runtime.default_backend
    return f"torch's process group ({backend}) is ready before the function starts{other}"


def _launched(asked: _Asked) -> Any:
    """Start the replicas; before that, print the plan if the call asks for it."""
    fields: dict[str, Any] = {
        "world": asked.world, "grouped": True, "store_port": asked.port, "notes": asked.notes,
        "imports": asked.imports,
    }  # fmt: skip
    if asked.print_config:
        from xmp._calls.host import plan_for

        sys.stdout.write(f"{plan_for(asked.call.requested(**fields), None)}\n")
        sys.stdout.flush()
    return launched(asked.call, **fields)
