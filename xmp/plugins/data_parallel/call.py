"""``data_parallel``: a torch model whose gradients are averaged over the replicas.

This module checks the call; ``_torch_ddp`` sets up torch's DistributedDataParallel, and
``_xla_gradients`` is its counterpart on torch_xla. For JAX, which averages gradients in the step
that it compiles, there is a recipe instead of a wrapper.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from xmp._inside.groups import refuse_in_child
from xmp._inside.identity import ReplicaState, current, framework_of
from xmp._os.imports import imported, loaded_framework
from xmp._words.errors import PlanError, wrong_type
from xmp._words.framework import AveragingOptions

__all__ = ["data_parallel", "wrap"]

P = ParamSpec("P")
R = TypeVar("R")

_MOST_MB = 1e9
_JAX_MODULES = ("jax", "jaxlib", "flax", "haiku", "equinox", "optax", "numpy")

_JAX_RECIPE = """\
JAX needs no wrapper. Let one compiled step compute the gradients of the global batch:

    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(jax.devices(), ("data",))
    params = jax.device_put(params, NamedSharding(mesh, P()))  # the same on every device
    batch = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), mine)
    grads = jax.jit(jax.grad(loss))(params, batch)  # a mean over the batch: XLA adds the all-reduce

or average what each replica has computed: grads = xmp.all_reduce(grads, "mean")"""

_HABITS = {
    "bucket_cap_mb": "it is bucket_mb= here",
    "comm_buffer_size": "it is bucket_mb= here",
    "last_comm_buffer_size": "it is first_bucket_mb= here",
    "process_group": "it is group= here",
    "device_ids": "leave it out: a replica has one device, and the model's parameters say which",
    "output_device": "leave it out: the output is on the model's device",
    "device_mesh": "give the group of the mesh's dimension: group=mesh.get_group()",
    "dim": "leave it out: inputs are never split here, each replica has its own batch",
    "gradient_as_bucket_view": "leave it out: gradients are tensors of their own",
    "broadcast_buffers": "leave it out: buffers are those of the group's first rank",
    "forward_sync_buffers": "leave it out: buffers are those of the group's first rank",
    "init_sync": "leave it out: parameters and buffers are always made equal at the start",
    "check_reduction": "leave it out: torch has no use for it any more",
    "mixed_precision": "use torch.autocast, or comm_hook='bf16' for the reduction alone",
    "bucket_cap_mb_list": "give bucket_mb=, and first_bucket_mb= for the first bucket",
}


def _with_torchs_words(function: Callable[P, R]) -> Callable[P, R]:
    """Answer keywords of torch's DistributedDataParallel with what to write instead."""
    known = function.__kwdefaults__ or {}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        unknown = [name for name in kwargs if name not in known and name != "model"]
        if unknown:
            raise TypeError(f"data_parallel() does not take {_unknown(unknown, known)}")
        if len(args) > 1:
            raise TypeError(
                f"data_parallel() takes one positional argument, the model ({len(args)} given): "
                f"name the others ({', '.join(known)})"
            )
        try:
            return function(*args, **kwargs)
        except PlanError as error:  # the frames below the user's call say nothing about it
            raise error.with_traceback(None) from None

    return call


def _unknown(names: list[str], known: dict[str, Any]) -> str:
    said = []
    for name in names:
        near = difflib.get_close_matches(name, known, 1)
        meant = f"did you mean {near[0]}=?" if near else f"it takes {', '.join(known)}"
        said.append(f"{name}=: {_HABITS.get(name, meant)}")
    return "; ".join(said)


@_with_torchs_words
def data_parallel(
    model: Any,
    *,
    bucket_mb: float = 25,
    first_bucket_mb: float = 1,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
    comm_hook: Any = None,
    sync_batchnorm: bool = False,
    group: Any = None,
) -> Any:
    """Wrap a torch model for data-parallel training: ``backward()`` averages the gradients.

    Each replica trains on its part of the global batch, with the optimizer that it would use
    alone::

        xmp.init_process_group()  # or spawn(backend="auto"), or @xmp.launcher
        model = xmp.data_parallel(Net().to(xmp.device()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()

    It is torch's own ``DistributedDataParallel``, or on torch_xla a reduction of the gradients when
    ``backward()`` ends. Parameters and buffers become those of the group's first rank. All replicas
    of the group make the call together. If ``loss`` is a mean, and the parts have equal sizes, a
    step equals that of one process on the global batch. ``with model.no_sync():`` accumulates
    without averaging: the last forward and backward of a step stay outside of it.

    The result is a ``torch.nn.Module``; the model is its ``module``. ``state_dict()`` and
    ``load_state_dict()`` are the model's, without a prefix; attributes that it does not have are
    read from, and set on, the model; so are modules and parameters that are set on the result. In a
    world of one it averages nothing, and a warning says so unless ``nprocs=1`` asked for it.
    Pickled (as a replica's result, by ``torch.save``) it is the model alone. A deep copy is wrapped
    as well, and no communication happens.

    Call the result, not ``model.module`` or other methods of the model: gradients of those are not
    averaged (a warning says so where they reach the first or the last parameter). Freeze
    parameters, add new ones and change their dtype before wrapping: parameters that training
    reaches only afterwards are an error at the next call. A model may be frozen as a whole, as in
    the turns of a GAN. To wrap again, call ``xmp.data_parallel(model.module)``; ``torch.compile``
    of the old wrapper does not apply to the new one.

    For JAX there is no wrapper: a jitted gradient over a batch that is sharded over the mesh is
    averaged already (the TypeError for a JAX model shows how), and ``xmp.all_reduce(grads,
    "mean")`` averages what replicas have computed apart.

    Args:
        model: the module, on this replica's device.
        bucket_mb: the limit of a bucket, in MiB; gradients are reduced in buckets while backward
            goes on.
        first_bucket_mb: the same for the first bucket of a backward, whose reduction starts first.
        find_unused_parameters: for models in which a step leaves parameters without a gradient.
        static_graph: a promise that every step uses the same parameters in the same way.
        comm_hook: "bf16" or "fp16" (reduce in half the bytes), "powersgd" (reduce a rank-1
            approximation, after 1,000 steps that reduce in full), a hook of torch's
            ``ddp_comm_hooks`` kind, which gets the group as its state, or a pair ``(hook, state)``.
        sync_batchnorm: BatchNorm layers use the statistics of the global batch. They are replaced
            in the model by layers with the same parameters and buffers.
        group: a process group of torch's, to average over its replicas alone.

    Raises:
        TypeError: the model is no ``torch.nn.Module``, an argument is of a wrong type, or a
            keyword is torch's and not needed here.
        PlanError: the process group is not there yet, this replica is not in ``group``, no
            parameter is trainable, a value is not allowed, or the model cannot be wrapped as it
            is: on another device than this replica's, on the meta device, wrapped already; or
            the replicas of the group differ in the model or the options.
    """
    options = AveragingOptions(
        bucket_mb,
        first_bucket_mb,
        find_unused_parameters,
        static_graph,
        comm_hook,
        sync_batchnorm,
        group,
    )
    return wrap(model, options)


def wrap(model: Any, options: AveragingOptions) -> Any:
    """Check the options and wrap: ``data_parallel`` for another name of it, with its ``words``."""
    checked = replace(
        options,
        bucket_mb=_megabytes("bucket_mb", options.bucket_mb),
        first_bucket_mb=_megabytes("first_bucket_mb", options.first_bucket_mb),
    )
    for name in ("find_unused_parameters", "static_graph", "sync_batchnorm"):
        _check_flag(name, getattr(options, name))
    _refuse_what_is_no_module(model)
    return _maker(current(), model)(model, checked)


def _maker(state: ReplicaState, model: Any) -> Callable[[Any, AveragingOptions], Any]:
    """Return what wraps ``model``: torch's way, unless it lies where XLA's collectives reduce."""
    refuse_in_child("data_parallel")
    framework: Any = framework_of(state)
    if not hasattr(framework, "averaging_members"):
        if all(parameter.device.type != "xla" for parameter in model.parameters()):
            make: Callable[[Any, AveragingOptions], Any] = _module("_torch_ddp").data_parallel
            return make
        framework = imported("xmp._inside.frameworks.torch_xla").attach(state.info)
    return functools.partial(_module("_xla_gradients").data_parallel, framework)


def _module(name: str) -> Any:
    """Import a module of this package that imports torch."""
    return imported(f"{__package__}.{name}")


def _megabytes(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(name, "a number of MiB", value)
    if not 0 < value < _MOST_MB:
        raise PlanError(
            f"{name}={value!r}: give a number of MiB above 0 (torch's own are 25 and 1)",
            code="XMP-P01",
        )
    return float(value)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise wrong_type(name, "True or False", value)


def _refuse_what_is_no_module(model: Any) -> None:
    torch = loaded_framework("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return
    if isinstance(model, type) and torch is not None and issubclass(model, torch.nn.Module):
        raise TypeError(
            f"data_parallel() takes a model, not its class: write {model.__qualname__}(…)"
        )
    what = f"data_parallel() takes a torch.nn.Module, not {_name(type(model))}"
    raise TypeError(f"{what}. {_JAX_RECIPE}" if _is_jaxs(model) else what)


def _name(kind: type) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def _is_jaxs(model: Any) -> bool:
    """Return whether it is a model of JAX's world, or a tree of its arrays."""
    if isinstance(model, dict):
        return any(map(_is_jaxs, model.values()))
    if isinstance(model, (list, tuple)):
        return any(map(_is_jaxs, model))
    kinds = type(model).__mro__
    return any(kind.__module__.partition(".")[0] in _JAX_MODULES for kind in kinds)
