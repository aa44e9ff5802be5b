"""``launch``: ``spawn``, or the function itself in a process that another launcher started."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from xmp._os.imports import without_collections
from xmp._words.errors import PlanError

from .spawn import Args, asked_by, launched, public, refuse_while_importing

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from xmp._plan.clusters.per_device import Started
    from xmp._processes import ProcessContext, Results
    from xmp._words.event import Event
    from xmp._words.types import Bind, RuntimeName, StartMethod

    from .job import Job
    from .options import Asked
    from .spawn import SpawnOptions

    class EngineOptions(SpawnOptions, total=False):
        """Options beside those of ``spawn``, for hosts of an engine."""

        hosts: Hosts | None
        runtime_env: Mapping[str, Any] | None
        python: str | None
        cwd: str | os.PathLike[str] | None
        copy_env: str | Sequence[str] | None
        ssh_options: str | Sequence[str] | None
        gather_logs: bool


__all__ = ["as_rank", "launch"]

P = ParamSpec("P")
R = TypeVar("R")
Hosts = int | str | Sequence[str]
"""Names of hosts for "ssh" and "slurm", a number of hosts for the others; with "ray" also a slice
such as "v6e:4x4", or the ids of Ray's nodes."""
EngineName = Literal["ssh", "slurm", "ray", "local"] | str


@overload
def launch(
    fn: Callable[Concatenate[int, P], R],
    args: Args = ...,
    nprocs: int | None = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
    **options: Unpack[SpawnOptions],
) -> Results[R]: ...


@overload
def launch(
    fn: Callable[Concatenate[int, P], R],
    args: Args = ...,
    nprocs: int | None = ...,
    *,
    join: Literal[False],
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
    **options: Unpack[SpawnOptions],
) -> ProcessContext[R]: ...


@overload
def launch(
    fn: Callable[Concatenate[int, P], R],
    args: Args = ...,
    nprocs: int | None = ...,
    join: bool = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
    **options: Unpack[SpawnOptions],
) -> Results[R] | ProcessContext[R]: ...


@overload
def launch(
    fn: Callable[Concatenate[int, P], R],
    args: Args = ...,
    nprocs: int | None = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
    *,
    engine: EngineName,
    **options: Unpack[EngineOptions],
) -> Results[R]: ...


@overload
def launch(
    fn: Callable[Concatenate[int, P], R],
    args: Args = ...,
    nprocs: int | None = ...,
    *,
    join: Literal[False],
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
    engine: EngineName,
    **options: Unpack[EngineOptions],
) -> Job[R]: ...


@overload
def launch(
    fn: Callable[Concatenate[int, P], R],
    args: Args = ...,
    nprocs: int | None = ...,
    join: bool = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
    *,
    engine: EngineName,
    **options: Unpack[EngineOptions],
) -> Results[R] | Job[R]: ...


@public
def launch(
    fn: Callable[Concatenate[int, P], R],
    args: Args = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod | None = None,
    *,
    hosts: Hosts | None = None,
    engine: EngineName | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    python: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    copy_env: str | Sequence[str] | None = None,
    ssh_options: str | Sequence[str] | None = None,
    gather_logs: bool = False,
    kwargs: dict[str, Any] | None = None,
    runtime: RuntimeName | None = None,
    devices: Sequence[int] | str | None = None,
    backend: str | None = None,
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    bind: Bind | None = None,
    start_timeout: float | None = None,
    timeout: float | None = None,
    hang_timeout: float | None = None,
    grace: float = 5.0,
    max_restarts: int = 0,
    log_dir: str | os.PathLike[str] | None = None,
    prefix: bool | str | None = None,
    show: Collection[int] | str | int | None = None,
    progress: bool | None = None,
    events: Callable[[Event], object] | str | os.PathLike[str] | None = None,
) -> Results[R] | ProcessContext[R] | Job[R]:
    """Run ``fn(rank, *args, **kwargs)`` on every device, in any launcher's processes or in xmp's.

    In a process that torchrun, Slurm or MPI started for one device, and under `xmp run`, ``fn``
    runs here, as the rank that the launcher has given this process, whatever NNODES says.
    Everywhere else, with one process on each host too, this is ``spawn`` with the same arguments.

    Where ``fn`` runs here, ``kwargs``, ``seed``, ``runtime`` and ``backend`` mean what they mean to
    ``spawn``, and ``nprocs`` is None (or -1) or the number of the launcher's processes on this
    host. ``start_method``, ``daemon`` and ``grace`` say how xmp starts and ends replicas, and here
    it starts none. Every other option is refused, since only the launcher could do it. xmp changes
    no variable and leases no port: torch's process group meets at the launcher's MASTER_ADDR.

    ``hosts`` and ``engine`` run it on several hosts instead, from this process, their driver. Each
    host has a launcher of its own, the agent, which stays for the next launch over the same hosts,
    until ``xmp.shutdown()`` or the end of this process.

    - ``engine="ssh"``: hosts that ``ssh`` reaches, as in ``hosts=["a", "user@b:2222"]``. Its own
      configuration is used (~/.ssh/config: jump hosts, keys, shared connections), and no password
      is asked for. No port has to be open but that of ssh.
    - ``engine="slurm"``: nodes of the Slurm allocation in which this program runs, reached by
      ``srun``: all of them, or those that ``hosts`` names, or the first ``hosts`` of them.
    - ``engine="ray"``: nodes of a Ray cluster. ``hosts`` is their number, a TPU slice such as
      "v6e:4x4", or a list of node ids. The cluster is that of the program's ``ray.init``,
      otherwise that of RAY_ADDRESS, the one that `ray start` has started here, or a new one.
    - ``engine="local"``: this machine plays so many hosts (1 to 253), at 127.0.0.2, 127.0.0.3 and
      so on, to test programs for several hosts. Their runtime is "cpu", "jax" on CPU, or "fake".

    The options mean what they mean to ``spawn``, with these differences: ``nprocs``, ``devices``,
    ``threads``, ``bind`` and ``env`` are those of each host; with "ray", ``env`` as a function
    needs ``nprocs``; ``args`` are sent to each host, whose replicas share CPU tensors (not those of
    other hosts, and not with ``start_method="spawn"``), and locks and queues cannot be sent; "fork"
    is refused; ``start_timeout=None`` is 300 s for the hosts to come. One host's failure ends all;
    with ``max_restarts`` all start again, and another host or agent takes the place of a lost one.

    Where there are several hosts, ``prefix=None`` puts "[{host}:{rank}] " before each line, and
    ``prefix=False`` nothing. ``{host}`` is the node's name, with its index where several hosts have
    that name ("node#1"), or the address with "local".

    With "ssh" and "slurm", ``python`` is the interpreter on the hosts (a path, which may begin with
    ~/, or a name on the PATH there) and ``cwd`` their working folder; by default both have the
    paths that they have here. Each host needs xmp in the same version there. ``copy_env`` are
    patterns of variables of this process that replicas get, such as ``("WANDB_*",)``; with "ssh"
    they have those of a login otherwise, with "slurm" those that ``srun`` sends. ``ssh_options``
    are words for ``ssh``, such as ``("-o", "ProxyJump=gate")``. The folders of this program's
    ``sys.path`` are in that of replicas where they exist on the host.

    ``runtime_env`` says, with ``engine="ray"`` alone, what Ray prepares on the hosts, over what
    ``ray.init(runtime_env=...)`` says: ``working_dir``, ``py_modules``, ``pip``, ``env_vars`` and
    the others that Ray takes for an actor. Local folders are stored in the cluster as they are at
    the launch. Otherwise a host needs the modules that the function imports, but not the script.

    ``log_dir`` is a folder on each host; with ``gather_logs=True`` its files are also brought to
    that folder on this machine when the launch has ended, however it has. A warning names what
    cannot be had, such as the files of a host that is gone. ``gather_logs`` needs ``engine`` and
    ``log_dir``; with "local" all files are here anyway.

    Returns:
        What ``spawn`` returns, with ``hosts`` of all ranks; with ``join=False`` a ``Job`` then.
        Where ``fn`` ran here: ``Results`` of one, this rank's.

    Raises:
        PlanError: an option that only the launcher could do, or a request that does not fit; an
            engine that xmp does not have, or that is not installed here.
        StartError: no cluster answers, or it has too few hosts until ``start_timeout`` is over.
        HostLost: a host or its agent has ended, so that the job could not go on.
        XmpError: otherwise as ``spawn``. Where ``fn`` runs here, what it raises.
    """
    asked = asked_by(locals())
    from xmp._plan.clusters import per_device

    found = per_device.started(os.environ)
    if hosts is not None or engine is not None or asked.prepared_for:
        over_hosts: Results[R] | Job[R] = _on_hosts(found, asked)
        return over_hosts
    result: Results[R] | ProcessContext[R]
    result = launched(asked) if found is None else as_rank(found, asked)
    return result


def _on_hosts(found: Started | None, asked: Asked) -> Any:
    """Launch from here on hosts of an engine."""
    from xmp import _registry

    engines = _registry.require("hosts", "engines")
    engine, hosts = engines.checked(asked.hosts, asked.engine, asked.prepared)
    if found is not None:
        raise PlanError(
            f"engine={engine.name!r}: {found.launcher} has started this process ({found.given}), "
            "and each of its processes would launch on the hosts. Call it in a program that is "
            "started once, or give neither hosts= nor engine=",
            code="XMP-P09",
        )
    if callable(asked.env) and asked.request.nprocs is None and engine.name != "local":
        raise PlanError(
            f"env= as a function with engine={engine.name!r} and no nprocs=: xmp calls it "
            "here for each local rank, and the hosts may have other devices than this machine. "
            "Give nprocs=, or a mapping",
            code="XMP-P05",
        )
    request = asked.requested()
    refuse_while_importing()
    with without_collections():
        call = asked.call()
    return engines.launch(engine, hosts, request, call, asked.join)


def as_rank(found: Started, asked: Asked, grouped: bool = False) -> Results[Any]:
    """Call the function here, as the rank that a launcher has given this process.

    ``grouped``: the process group is ready when the function starts, wherever the runtime has one.
    """
    _refuse(found, asked)
    request = asked.requested(grouped=grouped)
    refuse_while_importing()
    with without_collections():
        from .as_rank import run_as_rank
    seed = asked.settings.seed
    return run_as_rank(found, request, asked.fn, asked.args, asked.kwargs, seed)


def _refuse(found: Started, asked: Asked) -> None:
    """Raise PlanError for what only the launcher of this process could do."""
    names = [option.name for option in asked.given if option.as_rank == "refused"]
    names += [] if asked.join else ["join=False"]
    if names:
        raise PlanError(
            f"{', '.join(names)}: {found.launcher} has started this process ({found.given}), so "
            f"fn runs in it, and xmp starts no replica to which that could apply. Omit it here, "
            f"use the options of the launcher, or {found.advice}.",
            code="XMP-P09",
        )
